"""The clients. Each one is a module that runs as a process: `python -m benchmarks.clients.X JOB`."""
