"""One module per client. Each runs as a process of its own: `python -m benchmarks.clients.X JOB`."""
