"""The runtime on the embedded broker, in virtual time."""
