"""TODO: replaced by its owner."""
