"""The interface to RabbitMQ, based on `hopback.wire`."""

from __future__ import annotations

from hopback.broker.rabbitmq.broker import RabbitMQ
from hopback.broker.rabbitmq.channel import RabbitChannel
from hopback.broker.rabbitmq.connection import RabbitConnection

__all__ = ["RabbitChannel", "RabbitConnection", "RabbitMQ"]
