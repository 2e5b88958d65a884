"""Dead letters of Celery and Dramatiq: task, arguments and exception."""

from __future__ import annotations

import json
import pickle
from typing import Any

import pytest

from hopback.headers import failure_from_traceback
from hopback.message import Properties, Received
from hopback.ops.contract.values import Moment
from hopback.ops.messages.dead_letter import last_failure, read_dead_letter
from hopback.ops.messages.story import describe_failure

_CELERY = {
    "lang": "py",
    "task": "shop.charge",
    "id": "5f1d",
    "retries": 2,
    "argsrepr": "(17,)",
    "kwargsrepr": "{'currency': 'EUR'}",
}
_TRACE = """Traceback (most recent call last):
  File "/srv/shop/tasks.py", line 12, in charge
    pay(order)
  File "/usr/lib/python3/site-packages/http/client.py", line 3, in pay
    raise ConnectionError("no answer: 10.0.0.7")
ConnectionError: no answer: 10.0.0.7
"""


def _dead_letter(body: bytes, headers: dict[str, Any] | None = None, kind: str = "") -> Received:
    properties = Properties(headers=headers or {}, content_type=kind or None)
    return Received("tasks.dlq", "", "tasks.dlq", body, properties)


def _read(delivery: Received) -> tuple[str, str, str]:
    """Task, id, and the sentence about it."""
    dead_letter = read_dead_letter(delivery, 1)
    assert last_failure(delivery) == (dead_letter.fingerprint, dead_letter.last_failed)
    return dead_letter.type, dead_letter.message_id, describe_failure(dead_letter, delivery)


def test_celery_task_is_shown_as_call() -> None:
    """Its arguments are read from JSON, and its retries count as attempts."""
    body = json.dumps([[17], {"currency": "EUR"}, {"chord": None}]).encode()
    delivery = _dead_letter(body, _CELERY, "application/json")
    kind, message_id, sentence = _read(delivery)
    assert (kind, message_id) == ("shop.charge", "5f1d")
    assert sentence.endswith('It is the Celery task shop.charge(17, currency="EUR").')
    assert read_dead_letter(delivery, 1).attempts == 3


class _Bomb:
    """An object whose unpickling runs code."""

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return pytest.fail, ("a pickle was loaded",)


@pytest.mark.parametrize("protocol", [0, 2, 5])
def test_pickle_is_never_loaded(protocol: int) -> None:
    """The arguments are shown as the producer wrote them into the headers."""
    body = pickle.dumps([(17,), {"bomb": _Bomb()}, {}], protocol)
    delivery = _dead_letter(body, _CELERY, "application/x-python-serialize")
    assert _read(delivery)[2].endswith(
        "It is the Celery task shop.charge((17,), {'currency': 'EUR'} "
        "(as its producer showed them: a pickle is not loaded))."
    )


def test_celery_protocol_1_task_is_read_from_body() -> None:
    body = {"task": "shop.charge", "id": "5f1d", "args": [1], "kwargs": {}, "retries": 0}
    kind, message_id, sentence = _read(_dead_letter(json.dumps(body).encode()))
    assert (kind, message_id) == ("shop.charge", "5f1d")
    assert sentence.endswith("It is the Celery task shop.charge(1).")


def test_dramatiq_message_shows_exception() -> None:
    """It has actor, arguments, retries and the application's frame of the traceback."""
    body = {
        "queue_name": "default",
        "actor_name": "charge",
        "args": [17],
        "kwargs": {"currency": "EUR"},
        "options": {"retries": 3, "traceback": _TRACE, "requeue_timestamp": 1_700_000_000_000},
        "message_id": "5f1d",
        "message_timestamp": 1_700_000_000_000,
    }
    delivery = _dead_letter(json.dumps(body).encode())
    dead_letter = read_dead_letter(delivery, 1)
    assert last_failure(delivery) == (dead_letter.fingerprint, dead_letter.last_failed)
    assert (dead_letter.type, dead_letter.message_id) == ("charge", "5f1d")
    assert (dead_letter.error, dead_letter.error_message) == (
        "ConnectionError",
        "no answer: 10.0.0.7",
    )
    assert (dead_letter.recorded_by, dead_letter.attempts, dead_letter.origin) == (
        "Dramatiq",
        4,
        "default",
    )
    assert dead_letter.last_failed == Moment(1_700_000_000)
    assert 'Dramatiq task charge(17, currency="EUR")' in describe_failure(dead_letter, delivery)
    other = json.dumps(body | {"options": {"traceback": _TRACE.replace("charge", "refund")}})
    assert read_dead_letter(_dead_letter(other.encode()), 1).fingerprint != dead_letter.fingerprint


def test_long_traceback_keeps_its_end() -> None:
    frames = "".join(f'  File "/srv/é{n}.py", line {n}, in f{n}\n    call()\n' for n in range(500))
    failure = failure_from_traceback(f"Traceback:\n{frames}shop.NoStock: none left")
    assert (failure.type, failure.message) == ("shop.NoStock", "none left")
    assert failure.frame == "é499.py:f499"
    assert failure.stack.startswith("…")
    assert failure.stack.endswith("none left")
    assert len(failure.stack.encode()) <= 4096


@pytest.mark.parametrize(
    "body",
    [
        {"actor_name": "a", "options": {"retries": "many", "traceback": 7}, "args": 3},
        {"actor_name": "a", "options": {"retries": True, "traceback": ":" * 100_000}},
        {"actor_name": "a" * 100_000, "options": {"requeue_timestamp": 2**80}},
        {"task": "t", "args": {"not": "a list"}, "kwargs": [1]},
        {"task": "t", "args": [[[[]]]], "kwargs": {"k": "\x1b[2J"}, "id": 7},
        {"actor_name": 1, "options": {}},
    ],
)
def test_random_task_content_raises_no_error(body: dict[str, Any]) -> None:
    """Invalid values are omitted, and texts are bounded."""
    delivery = _dead_letter(json.dumps(body).encode())
    dead_letter = read_dead_letter(delivery, 1)
    assert len(dead_letter.type) <= 255
    assert len(describe_failure(dead_letter, delivery)) < 5000


def test_task_header_alone_is_not_a_task() -> None:
    delivery = _dead_letter(b'{"id": 1}', {"task": "cleaning"})
    assert _read(delivery)[2] == "It does not contain the reason for its failure."
