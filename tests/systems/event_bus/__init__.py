"""The event bus as an application."""
