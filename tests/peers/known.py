"""Tests that pass on RabbitMQ and not on `hopback broker`, each with its reason."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["REASONS"]

REASONS: Mapping[str, str] = {
    "test_big_message": "20 MiB, and from 4.0 on RabbitMQ takes 16 MiB",
    "test_create_channels_during_reconnect": (
        "a race inside aio-pika; by itself on RabbitMQ 3.10.8 it failed in 3 of 10 runs with the same error"
    ),
    "test_replaced_task_nesting_level_0": (
        "the test sets its flag to False after it has sent the task; where the task is delivered at once, its"
        " handler has set the flag to True before"
    ),
}
"""The last part of a test's name, without its parameters → why."""
