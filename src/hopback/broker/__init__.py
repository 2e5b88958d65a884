"""Brokers behind one port: RabbitMQ over our wire, and the embedded broker."""

from __future__ import annotations

__all__: list[str] = []
