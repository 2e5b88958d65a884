"""One module per client. Each runs as a separate process: `python -m benchmarks.clients.X JOB`."""
