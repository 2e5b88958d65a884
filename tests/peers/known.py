"""Tests that pass on RabbitMQ and fail on `hopback broker`, with the reason."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["REASONS"]

REASONS: Mapping[str, str] = {
    "test_big_message": "20 MiB, and from 4.0 on RabbitMQ takes 16 MiB",
    "test_create_channels_during_reconnect": (
        "a race inside aio-pika if `connection.close-ok` arrives at once. Run alone it failed in 11"
        " of 12 runs on RabbitMQ 3.10.8 (0.4 ms) and 4.3.6 (0.3 ms), in 8 of 12 here (0.06 ms), and in"
        " none of 12 with `close-ok` delayed by 3 ms"
    ),
    "test_iterator_cancellation_survives_close_timeout": (
        "failed once while other tests used both cores. Run alone, it passed in three of three runs"
        " on hopback broker 3.10 and 4.0, and on RabbitMQ 3.10.8"
    ),
    "test_leak_unclosed_channel": (
        "fails sometimes on RabbitMQ too: run alone, it failed in two of three runs on RabbitMQ"
        " 3.10.8 and in none of six here"
    ),
    "test_replaced_task_nesting_level_0": (
        "the test sets its flag to False after it has sent the task. If the task is delivered at"
        " once, its handler has already set the flag to True"
    ),
}
"""Reasons by test name, without path and parameters."""
