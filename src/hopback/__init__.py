"""Hopback makes RabbitMQ consumers dependable."""

from __future__ import annotations

__all__ = ["__version__"]

__version__ = "0.1.0"
