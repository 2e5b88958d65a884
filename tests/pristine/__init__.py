"""The project on machines that nobody has prepared: `make pristine`."""
