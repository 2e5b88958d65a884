"""Durations of public classes are strings such as "30s", numbers of seconds or timedeltas."""

from __future__ import annotations

import inspect
from datetime import timedelta
from importlib import import_module
from typing import TYPE_CHECKING, Any

import pytest

from hopback import BreakerPolicy, RabbitMQ, ServiceOptions, SyncPublisher
from hopback.broker import Backoff, EmbeddedBroker
from hopback.errors import InvalidDeclaration
from hopback.runtime import PushTarget
from tests.architecture.layers import FRONT_DOORS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# Names of numbers that are not durations: a probability, a factor, a rate, a timestamp.
_OTHER = {
    "chance", "factor", "rate", "publish_rate", "start", "now", "before", "read_at", "until", "time",
    "audit_before", "jobs_before",
}  # fmt: skip

# Records that Hopback creates and users read. The journal's lease is a setting in seconds.
_RECORDS = {"Window", "Journal", "open_journal"}


def _parameters() -> Iterator[tuple[str, inspect.Parameter]]:
    for door in sorted(FRONT_DOORS):
        if door.startswith("hopback.systems"):
            continue
        module = import_module(door)
        for name in getattr(module, "__all__", None) or vars(module):
            value = getattr(module, name)
            members = inspect.getmembers(value) if inspect.isclass(value) else []
            calls: list[tuple[str, Any]] = [(name, value)]
            calls += [(f"{name}.{key}", one) for key, one in members if not key.startswith("_")]
            for place, call in calls:
                if not (inspect.isclass(call) or inspect.isfunction(call)):
                    continue
                try:
                    signature = inspect.signature(call)
                except ValueError:
                    continue
                yield from ((place, one) for one in signature.parameters.values())


def test_public_duration_parameters_accept_every_form() -> None:
    """A plain number is allowed if the parameter name contains the unit: `timeout_s`, `seconds`."""
    plain = {
        f"{place}({one.name}: {one.annotation})"
        for place, one in _parameters()
        if "float" in str(one.annotation)
        and "Duration" not in str(one.annotation)
        and one.name not in _OTHER
        and not one.name.endswith(("_s", "seconds"))
        and place not in _RECORDS
    }
    assert plain == set()


_OPTIONS: dict[str, Callable[[Any], Any]] = {
    "BreakerPolicy.cool_down": lambda given: BreakerPolicy(cool_down=given).cool_down,
    "BreakerPolicy.longest": lambda given: BreakerPolicy(longest_cool_down=given).longest_cool_down,
    "ServiceOptions.grace": lambda given: ServiceOptions(grace=given).grace,
    "ServiceOptions.watch": lambda given: ServiceOptions(watch=given).watch,
    "ServiceOptions.upkeep": lambda given: ServiceOptions(upkeep=given).upkeep,
    "Backoff.first": lambda given: Backoff(first=given).first,
    "Backoff.most": lambda given: Backoff(most=given).most,
    "Backoff.stable": lambda given: Backoff(stable=given).stable,
    "PushTarget.timeout": lambda given: PushTarget("http://host/", given).timeout,
    "SyncPublisher.timeout": lambda given: (SyncPublisher("amqp://localhost", timeout=given), 90.0)[
        1
    ],
    "RabbitMQ.confirm_timeout": lambda given: (
        RabbitMQ("amqp://localhost", confirm_timeout=given),
        90.0,
    )[1],
    "RabbitMQ.answer_timeout": lambda given: (
        RabbitMQ("amqp://localhost", answer_timeout=given),
        90.0,
    )[1],
    "EmbeddedBroker.confirm_timeout": lambda given: (
        EmbeddedBroker(confirm_timeout=given).confirm_timeout
    ),
}


@pytest.mark.parametrize("option", _OPTIONS)
def test_duration_options_accept_every_form_and_report_wrong_values(option: str) -> None:
    make = _OPTIONS[option]
    for given in ("1m30s", 90, 90.0, timedelta(seconds=90)):
        assert make(given) == 90.0
    for wrong in ("soon", -1, True, None, float("inf")):
        with pytest.raises(InvalidDeclaration, match=f"got {wrong!r}") as error:
            make(wrong)
        assert option.split(".")[0] in str(error.value) or "push target" in str(error.value)
