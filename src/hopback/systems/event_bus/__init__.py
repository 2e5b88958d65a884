"""The event bus. An event is published once and pushed over HTTP to all registered services."""
