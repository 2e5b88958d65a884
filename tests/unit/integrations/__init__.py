"""Parts of the integrations that need no broker."""
