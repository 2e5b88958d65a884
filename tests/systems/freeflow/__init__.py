"""FreeFlow as an application."""
