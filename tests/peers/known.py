"""Tests that pass on RabbitMQ and not on `hopback broker`, each with its reason."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["REASONS"]

REASONS: Mapping[str, str] = {
    "test_big_message": "20 MiB, and from 4.0 on RabbitMQ takes 16 MiB",
    "test_healthtests_get": "`GET /api/healthchecks/node` is not there",
    "test_healthtests_get_with_node_name": "`contexts` is not in the overview",
    **dict.fromkeys(
        (
            "test_api_queue_list_filter_with_regex",
            "test_api_queue_list_filter_with_regex_boolean",
            "test_api_queue_list_filter_without_regex",
        ),
        "lists of queues are not filtered by `name`",
    ),
    "test_api_delete_bulk": "`POST /api/users/bulk-delete` is not there",
}
"""The last part of a test's name, without its parameters → why."""
