"""Findings by version, and of a live broker."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hopback.designs import DESIGNS
from hopback.topology.check import check
from hopback.topology.hazards.rule import Severity, VersionedSeverity, format_severities
from hopback.topology.model import Queue, Topology
from hopback.version import BrokerVersion
from tests.unit.topology_check.building import (
    classic,
    edited,
    found,
    live,
    loop,
    quorum,
    rules,
    sound,
)
from tests.unit.topology_check.casebook import with_parameters

DEFAULT_LIMIT = edited(sound(), "orders.dlq", delivery_limit=None)
QUORUM_LOOP = loop(quorum("q", dead_letter_exchange="", dead_letter_routing_key="q.retry"))


@pytest.mark.parametrize(
    ("topology", "rule", "severities"),
    [
        (DEFAULT_LIMIT, "looking-deletes", (None, None, "error", "error", "warning", "error")),
        (
            edited(sound(), "orders.dlq", delivery_limit=5),
            "looking-deletes",
            ("error", "error", "error", "error", "warning", "error"),
        ),
        # Browsing allows this limit too.
        (edited(sound(), "orders.dlq", delivery_limit=1000), "looking-deletes", (None,) * 6),
        (
            QUORUM_LOOP,
            "delivery-limit-feeds-retry",
            (None, None, "error", "error", "error", "error"),
        ),
        (
            loop(
                quorum(
                    "q",
                    dead_letter_exchange="",
                    dead_letter_routing_key="q.retry",
                    delivery_limit=9,
                )
            ),
            "delivery-limit-feeds-retry",
            ("error",) * 6,
        ),
        (live(quorum("q")), "delivery-limit-deletes", (None, None, *["warning"] * 4)),
        (live(quorum("q", delivery_limit=9)), "delivery-limit-deletes", ("warning",) * 6),
        (
            live(quorum("q", delivery_limit=-1)),
            "first-return-deletes",
            ("error", "error", None, None, None, "error"),
        ),
        (live(quorum("q", delivery_limit=0)), "first-return-deletes", ("error",) * 6),
        (
            live(quorum("q", delayed_retry_min=5)),
            "argument-ignored",
            (*["warning"] * 4, None, "warning"),
        ),
        (
            live(classic("q", queue_version=1)),
            "argument-refused",
            (None, None, None, None, "error", "error"),
        ),
        (
            live(classic("q", consumer_timeout=1)),
            "argument-refused",
            (None, None, None, None, "error", "error"),
        ),
        (
            live(classic("q", queue_leader_locator="balanced")),
            "argument-refused",
            ("error", None, None, None, None, "error"),
        ),
        (
            live(Queue("q", durable=False)),
            "transient-queue",
            ("warning",) * 6,
        ),
        (
            live(Queue("q", durable=False, auto_delete=True)),
            "transient-queue",
            (None, None, None, None, "warning", "warning"),
        ),
        (
            live(classic("q", queue_mode="lazy")),
            "argument-ignored",
            (None, "info", "info", "info", "info", "info"),
        ),
        (
            with_parameters(
                live(quorum("q", delivery_limit=5)), ("shovel", "s", {"src-queue": "q"})
            ),
            "shovel-empties-quorum-queue",
            (*["error"] * 4, None, "error"),
        ),
    ],
)
def test_severity_depends_on_version(
    topology: Topology, rule: str, severities: tuple[str | None, ...]
) -> None:
    versions = ("3.10", "3.13.7", "4.0", "4.2", "4.3", None)
    seen = [[str(each.severity) for each in found(topology, rule, version)] for version in versions]
    assert seen == [[severity] if severity else [] for severity in severities]


def test_finding_without_version_names_affected_versions() -> None:
    (for_all,) = found(DEFAULT_LIMIT, "looking-deletes")
    assert for_all.explanation.endswith(
        "(RabbitMQ: error from 4.0 and before 4.3, warning from 4.3.)"
    )
    (for_one,) = found(DEFAULT_LIMIT, "looking-deletes", "4.0")
    assert "RabbitMQ" not in for_one.explanation
    (everywhere,) = found(loop(message_ttl=5), "cycle-without-rejection")
    assert "RabbitMQ" not in everywhere.explanation


def test_version_ranges_are_spelled_out() -> None:
    ends = (("", ""), ("4.0", ""), ("", "3.13"), ("3.13", "3.13.3"))
    severities = [VersionedSeverity.of(Severity.INFO, *each) for each in ends]
    assert format_severities(severities) == (
        "info, info from 4.0, info before 3.13, info from 3.13 and before 3.13.3"
    )
    assert [each.is_universal for each in severities] == [True, False, False, False]
    assert [each.applies_to(BrokerVersion(3, 13, 2)) for each in severities] == [
        True,
        False,
        False,
        True,
    ]


@pytest.mark.parametrize("name", sorted(DESIGNS))
def test_design_is_recognised_without_plans(name: str) -> None:
    design = DESIGNS[name]
    faithful = design.build()
    told = {"queue-without-plan"}
    assert rules(replace(faithful, plans=())) == rules(faithful) | told
    hardened = check(replace(design.build(hardened=True), plans=()))
    assert {each.severity for each in hardened} == {Severity.INFO}
