"""Ratatoskr: typed events on quorum queues, transient and permanent failures, an idempotent consumer."""
