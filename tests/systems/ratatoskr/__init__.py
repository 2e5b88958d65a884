"""Ratatoskr as an application."""
