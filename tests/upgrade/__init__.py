"""What an earlier version has written is taken over: stores, jobs, exports, settings, waiting messages."""
