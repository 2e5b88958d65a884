"""The event bus: events published once, pushed over HTTP to every service that is registered."""
