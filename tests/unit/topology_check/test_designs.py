"""The known hazards of the five documented designs."""

from __future__ import annotations

import pytest

from hopback.designs import DESIGNS
from hopback.topology.check import check
from hopback.topology.hazards.rule import Severity
from hopback.topology.model import QueueType
from hopback.version import BrokerVersion

VERSIONS = ("3.10", "3.12.14", "3.13.3", "4.0", "4.2", "4.3", None)
AFTER_4_0 = ("4.0", "4.2", "4.3", None)
FAITHFUL = {
    "file-pipeline": {"at-most-once", "classic-queue", "expiration-feeds-retry"},
    "event-bus": {"at-most-once", "classic-queue", "expiration-feeds-retry"},
    "freeflow": {
        "at-most-once",
        "classic-queue",
        "dead-letter-queue-shared",
    },
    "raffle": {"at-most-once", "classic-queue"},
    "ratatoskr": {"at-most-once", "expiration-feeds-retry"},
}
SEVERITIES = {
    "at-most-once": Severity.WARNING,
    "classic-queue": Severity.WARNING,
    "expiration-feeds-retry": Severity.WARNING,
    "retry-reaches-others": Severity.WARNING,
    "dead-letter-queue-shared": Severity.INFO,
}


def expected(design: str, version: str | None) -> dict[str, Severity]:
    """The row of the table for a design and a version."""
    found = {rule: SEVERITIES[rule] for rule in FAITHFUL[design]}
    if design == "ratatoskr" and version in AFTER_4_0:
        found["delivery-limit-feeds-retry"] = Severity.ERROR
        found["looking-deletes"] = Severity.WARNING if version == "4.3" else Severity.ERROR
    return found


def parsed(version: str | None) -> BrokerVersion | None:
    """The version, if one is meant."""
    return BrokerVersion.parse(version) if version else None


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("design", sorted(FAITHFUL))
def test_faithful_design_has_exactly_its_known_hazards(design: str, version: str | None) -> None:
    found = check(DESIGNS[design].build(), parsed(version))
    assert {each.rule: each.severity for each in found} == expected(design, version)
    assert len(found) == len(expected(design, version))


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("design", sorted(DESIGNS))
def test_hardened_form_has_no_hazard(design: str, version: str | None) -> None:
    assert check(DESIGNS[design].build(hardened=True), parsed(version)) == ()


@pytest.mark.parametrize("version", VERSIONS)
def test_recommended_design_has_no_hazard(version: str | None) -> None:
    assert check(DESIGNS["recommended"].build(), parsed(version)) == ()


def test_every_documented_design_is_in_table() -> None:
    assert set(FAITHFUL) == {name for name, design in DESIGNS.items() if design.documented}


@pytest.mark.parametrize(
    ("design", "ways"),
    [
        ("file-pipeline", "out into the retry queue, back from the retry queue."),
        ("event-bus", "out into the retry queue, back from the retry queue."),
        ("freeflow", "back from the retry queue, into the dead-letter queue."),
        ("raffle", "back from the retry queue, into the dead-letter queue."),
        ("ratatoskr", "out into the retry queue, back from the retry queue."),
    ],
)
def test_at_most_once_finding_names_moves(design: str, ways: str) -> None:
    (found,) = (each for each in check(DESIGNS[design].build()) if each.rule == "at-most-once")
    assert f"at most once: {ways}" in found.explanation
    assert "--hardened" in found.fix


def test_freeflow_finding_names_audit_queue() -> None:
    recording = DESIGNS["freeflow"].build({"audit": "#"})
    (found,) = (each for each in check(recording) if each.rule == "retry-reaches-others")
    assert found.place == "exchange `freeflow.events`"
    assert "also reach `freeflow.audit.queue`," in found.explanation
    before = found.explanation.partition("return through")[0]
    assert "`freeflow.users.queue`" in before
    assert "audit" not in before


@pytest.mark.parametrize("version", VERSIONS)
def test_ratatoskr_on_classic_queues_has_warnings_instead_of_errors(version: str | None) -> None:
    topology = DESIGNS["ratatoskr"].build({"queue_type": str(QueueType.CLASSIC)})
    rules = {each.rule for each in check(topology, parsed(version))}
    assert rules == {"at-most-once", "classic-queue", "expiration-feeds-retry"}


def test_first_3_13_releases_are_reported_for_reject_loops() -> None:
    for release in ("3.13", "3.13.2"):
        version = BrokerVersion.parse(release)
        found = {
            name
            for name in FAITHFUL
            for each in check(DESIGNS[name].build(), version)
            if each.rule == "sound-loop-dropped"
        }
        assert found == {"file-pipeline", "event-bus", "ratatoskr"}
        assert all(check(DESIGNS[name].build(hardened=True), version) == () for name in DESIGNS)
