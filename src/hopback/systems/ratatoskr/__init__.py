"""Ratatoskr. Typed events on quorum queues, handled by an idempotent consumer that distinguishes
transient and permanent failures.
"""
