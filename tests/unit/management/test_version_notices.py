"""Notices that depend only on the version."""

from __future__ import annotations

import pytest

from hopback.broker.doctor import flag_notices, version_notices
from hopback.version import BrokerVersion


@pytest.mark.parametrize(
    ("version", "words", "absent"),
    [
        ("3.9.1", "hardened designs cannot be declared", "21st return"),
        ("3.10.8", "x-death header that a client publishes is interpreted", "21st return"),
        ("3.13.1", "drop dead letters without a cycle", "is interpreted"),
        ("3.13.3", "", "drop dead letters without a cycle"),
        ("4.0.5", "21st return", "cancels the consumer"),
        ("4.3.6", "cancels the consumer", "is interpreted"),
    ],
)
def test_each_version_has_its_notices(version: str, words: str, absent: str) -> None:
    text = "\n".join(notice.text for notice in version_notices(BrokerVersion.parse(version)))
    assert words in text
    assert absent not in text


def test_versions_that_lose_dead_letters_are_urgent() -> None:
    assert any(notice.urgent for notice in version_notices(BrokerVersion(3, 13, 1)))
    assert not any(notice.urgent for notice in version_notices(BrokerVersion(4, 0, 5)))


def test_disabled_flag_that_weakens_dead_lettering_is_reported() -> None:
    assert flag_notices(BrokerVersion(3, 10), ["stream_queue"])[0].urgent
    assert flag_notices(BrokerVersion(3, 10), ["user_limits"]) == ()
    assert flag_notices(BrokerVersion(4, 0), ["stream_queue"]) == ()
