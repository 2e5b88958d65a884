"""Dead letters as values: ours, the broker's, other frameworks', and hostile ones."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from hopback.designs import DESIGNS
from hopback.fields import Timestamp
from hopback.headers import failure_from_reason, failure_json
from hopback.message import Properties, Received
from hopback.ops.brokers.discovery import dead_letter_queues, stand_in_plan
from hopback.ops.messages.dead_letter import last_failure, read_dead_letter
from hopback.ops.messages.digest import content_digest
from hopback.ops.messages.filters import parse_filter
from hopback.ops.messages.story import describe_failure, timeline
from hopback.topology.model import Topology

if TYPE_CHECKING:
    from hopback.fields import FieldValue
    from hopback.ops.brokers.discovery import DeadLetterQueue
    from hopback.ops.contract.values import DeadLetter

NOW = 1_700_000_000.0


def death(queue: str, reason: str, count: int = 1) -> dict[str, FieldValue]:
    """An entry of `x-death`, as brokers write it."""
    return {
        "queue": queue, "reason": reason, "count": count, "exchange": "ex", "routing-keys": ["k"],
        "time": Timestamp(int(NOW) - 100),
    }  # fmt: skip


def received(headers: dict[str, Any], body: bytes = b"", **more: Any) -> Received:
    """A delivery from the dead-letter queue `dlq`."""
    return Received("dlq", "", "dlq", body, Properties(headers=headers, **more))


def dead_letter(headers: dict[str, Any], body: bytes = b"", **more: Any) -> DeadLetter:
    """The dead letter in it."""
    delivery = received(headers, body, **more)
    found = read_dead_letter(delivery, 1)
    # A survey reads no more than this: it must not group by anything else.
    assert last_failure(delivery) == (found.fingerprint, found.last_failed)
    return found


def of_one_queue() -> DeadLetterQueue:
    """`dlq`, known to be where the dead letters of `q` rest."""
    (found,) = dead_letter_queues(Topology("t", plans=(stand_in_plan("q", "dlq"),)))
    return found


def test_parked_message_shows_failure_attempts_and_times() -> None:
    record = failure_from_reason("none left", kind="shop.OutOfStock")
    text = failure_json(type(record)(record.type, record.message, record.fingerprint, attempts=3,
                                     first=NOW - 50, last=NOW - 20))  # fmt: skip
    found = dead_letter(
        {
            "hopback-queue": "q",
            "hopback-attempts": 3,
            "hopback-failure": text,
            "hopback-redrives": 2,
        }
    )
    assert (found.reason, found.origin, found.error) == ("parked", "q", "shop.OutOfStock")
    assert (found.fingerprint, found.attempts, found.redrives) == (record.fingerprint, 3, 2)
    assert (found.first_failed, found.last_failed, found.age(NOW)) == (NOW - 50, NOW - 20, 20.0)
    assert "q gave up after 3 attempts" in describe_failure(found)
    assert "re-driven 2 times before" in describe_failure(found)


def test_delivery_limit_death_is_read_from_x_death() -> None:
    headers: dict[str, Any] = {"x-death": [death("q", "delivery_limit")]}
    found = dead_letter(headers)
    assert (found.reason, found.origin, found.error, found.recorded_by) == (
        "delivery_limit", "q", "", "",
    )  # fmt: skip
    assert found.age(NOW) == 100.0
    assert "crashed" in describe_failure(found)
    same = dead_letter(headers, b"other body")
    other = dead_letter({"x-death": [death("q2", "delivery_limit")]})
    assert found.fingerprint == same.fingerprint != other.fingerprint


def test_message_parked_after_retries_has_reason_parked() -> None:
    """The last death is that of the retry queue."""
    marks = {"hopback-queue": "q", "hopback-attempts": 3, "hopback-failure": "{}"}
    headers: dict[str, Any] = {**marks, "x-death": [death("q.retry.30s", "expired")]}
    found = read_dead_letter(received(headers), 1, of_one_queue())
    assert (found.reason, found.attempts) == ("parked", 3)
    assert parse_filter("reason:parked").matches(found, received(headers), NOW)


def test_message_dead_lettered_after_retries_keeps_broker_reason() -> None:
    marks = {"hopback-queue": "q", "hopback-attempts": 2, "hopback-failure": "{}"}
    last = [death("q", "delivery_limit"), death("q.retry.30s", "expired")]
    assert dead_letter({**marks, "x-death": last}).reason == "delivery_limit"


@pytest.mark.parametrize(
    ("record", "runs"),
    [
        ([("q", "rejected", 1)], 1),
        ([("q", "rejected", 1), ("q.retry", "expired", 2)], 3),
        ([("q", "rejected", 1), ("q.10s", "expired", 1), ("q.60s", "expired", 1)], 3),
        ([("q", "rejected", 3), ("q.retry", "expired", 2)], 3),
        ([("q", "rejected", 3), ("q.wait1", "expired", 2), ("q.wait2", "expired", 2)], 3),
        ([("q", "expired", 1)], 0),
    ],
)
def test_attempts_are_counted_from_retry_queue_deaths(
    record: list[tuple[str, str, int]], runs: int
) -> None:
    assert dead_letter({"x-death": [death(*entry) for entry in record]}).attempts == runs


def test_uncounted_attempts_are_at_least_one() -> None:
    """A framework may have retried in its process. Attempts that the broker counted are exact."""
    spring = {
        "x-exception-message": "no",
        "x-exception-stacktrace": "shop.Broken: no\n\tat shop.A.b(A.java:1)",
    }
    alone, rejected = dead_letter(spring), dead_letter({"x-death": [death("q", "rejected")]})
    assert (alone.attempts, alone.attempts_at_least) == (1, True)
    assert "after at least 1 attempt" in describe_failure(alone)
    assert (rejected.attempts, rejected.attempts_at_least) == (1, False)


def test_snooze_does_not_count_as_attempt() -> None:
    """The count of Hopback takes precedence over waits in `x-death`."""
    marks = {"hopback-queue": "q", "hopback-attempts": 1, "hopback-snoozes": 4}
    headers: dict[str, Any] = {**marks, "x-death": [death("q.retry.30s", "expired", 4)]}
    assert read_dead_letter(received(headers), 1, of_one_queue()).attempts == 1


def test_origin_is_main_queue_and_not_retry_queue() -> None:
    """In a reject loop the newest death is that of the retry queue."""
    topology = DESIGNS["freeflow"].build()
    (source,) = [each for each in dead_letter_queues(topology) if len(each.origins) > 1]
    headers = {
        "x-death": [
            death("freeflow.alarm.retry.30s", "expired", 3),
            death("freeflow.alarms.queue", "rejected", 4),
        ]
    }
    found = read_dead_letter(received(headers), 1, source)
    assert (found.origin, found.reason, found.attempts) == ("freeflow.alarms.queue", "rejected", 4)


@pytest.mark.parametrize(
    ("headers", "framework", "error", "origin", "attempts"),
    [
        (
            {
                "MT-Fault-ExceptionType": "System.TimeoutException",
                "MT-Fault-Message": "too late",
                "MT-Fault-StackTrace": "   at Shop.Orders.Take(Int32 n) in C:\\x.cs:line 12\n   at Y.Z()",
                "MT-Fault-InputAddress": "rabbitmq://host/vhost/orders?durable=true",
                "MT-Fault-RetryCount": 2,
            },
            "MassTransit", "System.TimeoutException", "orders", 3,
        ),
        (
            {
                "NServiceBus.ExceptionInfo.ExceptionType": "System.Exception",
                "NServiceBus.ExceptionInfo.Message": "no",
                "NServiceBus.FailedQ": "Sales@host",
                "NServiceBus.TimeOfFailure": "2023-11-14 22:13:20:000000 Z",
            },
            "NServiceBus", "System.Exception", "Sales", 1,
        ),
        (
            {
                "x-exception-stacktrace": "java.lang.IllegalStateException: no\n\tat a.B.c(B.java:3)",
                "x-exception-message": "no",
                "x-death": [death("in", "rejected")],
            },
            "Spring", "java.lang.IllegalStateException", "in", 1,
        ),
        (
            {
                "X-Message-Stamp-Symfony\\Component\\Messenger\\Stamp\\ErrorDetailsStamp": json.dumps(
                    [{"exceptionClass": "App\\Broken", "exceptionMessage": "oh"}]
                ),
                "X-Message-Stamp-Symfony\\Component\\Messenger\\Stamp\\RedeliveryStamp": json.dumps(
                    [{"retryCount": 1}, {"retryCount": 3, "redeliveredAt": "2023-11-14T22:13:20+00:00"}]
                ),
                "X-Message-Stamp-Symfony\\Component\\Messenger\\Stamp\\SentToFailureTransportStamp": (
                    json.dumps([{"originalReceiverName": "async"}])
                ),
            },
            "Symfony", "App\\Broken", "async", 4,
        ),
    ],
)  # fmt: skip
def test_framework_headers_give_error_queue_and_retries(
    headers: dict[str, Any], framework: str, error: str, origin: str, attempts: int
) -> None:
    """Each framework has a separate fingerprint."""
    found = dead_letter(headers)
    assert (found.recorded_by, found.error, found.origin) == (framework, error, origin)
    assert found.attempts == attempts
    assert framework in describe_failure(found)
    assert found.fingerprint != dead_letter({"x-death": [death(origin, "rejected")]}).fingerprint


def test_fingerprint_ignores_numbers_and_line_numbers() -> None:
    one = {"MT-Fault-ExceptionType": "E", "MT-Fault-Message": "order 1"}
    assert dead_letter(one | {"MT-Fault-StackTrace": " at A.B() in x:line 1"}).fingerprint == (
        dead_letter(one | {"MT-Fault-StackTrace": " at A.B() in x:line 2"}).fingerprint
    )
    assert (
        dead_letter(one).fingerprint
        == dead_letter(one | {"MT-Fault-Message": "order 2"}).fingerprint
    )


_AXIOS = (
    "AxiosError: Request failed with status code 503\n    at Tickets.sync (/app/tickets.js:1:2)"
)
_NET = "Response status code does not indicate success: 503 (Service Unavailable)."
_SPRING = (
    "a.HttpServerErrorException: 503 Service Unavailable from GET http://x\n\tat a.B.c(B.java:1)"
)
_DRAMATIQ = (
    'Traceback (most recent call last):\n  File "/srv/a.py", line 3, in charge\n    raise error\n'
    "httpx.HTTPStatusError: Server error '503 Service Unavailable' for url 'http://x'"
)


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        ({"x-error-message": "Request failed with status code 503", "x-error-stack": _AXIOS}, ""),
        ({"MT-Fault-ExceptionType": "E", "MT-Fault-Message": _NET, "MT-Fault-StackTrace": " at A.B()"}, ""),
        ({"x-exception-message": "503 Service Unavailable", "x-exception-stacktrace": _SPRING}, ""),
        ({"x-last-error": "HTTPError: 503 Server Error: Service Unavailable for url: http://x"}, ""),
        ({}, json.dumps({"actor_name": "a", "queue_name": "q", "args": [], "kwargs": {},
                         "options": {"traceback": _DRAMATIQ}, "message_id": "m"})),
    ],
    ids=["axios", "MassTransit", "Spring", "requests", "Dramatiq"],
)  # fmt: skip
def test_fingerprint_includes_http_status_of_other_frameworks(
    headers: dict[str, str], body: str
) -> None:
    """A re-drive of the group must not send messages along whose status a repetition cannot repair."""

    def fingerprint(status: int) -> str:
        changed = {name: text.replace("503", str(status)) for name, text in headers.items()}
        return dead_letter(changed, body.replace("503", str(status)).encode()).fingerprint

    assert fingerprint(503) == fingerprint(503)
    assert len({fingerprint(status) for status in (404, 422, 502, 503)}) == 4


def test_fingerprint_ignores_numbers_that_are_no_http_status() -> None:
    found = {
        dead_letter({"x-last-error": f"E: order {n} is not found"}).fingerprint for n in (404, 405)
    }
    assert len(found) == 1


@pytest.mark.parametrize(
    ("headers", "body", "properties"),
    [
        ({"cloudEvents:type": "t", "cloudEvents:id": "i", "cloudEvents:time": "z"}, b"", {}),
        ({"ce-type": "t", "ce-id": "i", "ce-time": "z"}, b"{}", {}),
        ({}, b'{"specversion":"1.0","type":"t","id":"i","time":"z"}', {}),
        ({}, b'{"eventType":"t","eventId":"i","occurredAt":"z"}', {}),
        ({}, b'{"messageType":["urn:message:t"],"messageId":"i","sentTime":"z"}', {}),
        ({"ce-time": "z"}, b'{"type":"other"}', {"type": "t", "message_id": "i"}),
    ],
)
def test_envelope_gives_type_id_and_time(
    headers: dict[str, Any], body: bytes, properties: dict[str, Any]
) -> None:
    """CloudEvents in both modes and common envelopes are read. Properties take precedence."""
    found = dead_letter(headers, body, **properties)
    assert (found.type, found.message_id, found.sent) == ("t", "i", "z")


def test_large_body_is_not_parsed_for_envelope() -> None:
    assert dead_letter({}, b'{"type":"t","x":"' + b"x" * 70_000 + b'"}').type == ""


def test_digest_ignores_delivery_counts_and_header_order() -> None:
    one = content_digest(received({"a": 1, "b": "x"}, b"body"))
    assert one == content_digest(received({"b": "x", "x-delivery-count": 3, "a": 1}, b"body"))
    assert one != content_digest(received({"a": 1, "b": "x"}, b"Body"))
    assert one != content_digest(received({"a": True, "b": "x"}, b"body"))
    assert one != content_digest(received({"a": 1, "b": "x"}, b"body", priority=1))


def test_digest_covers_ends_and_length_of_huge_body() -> None:
    """The middle of a body above 1 MiB is not hashed."""
    big = bytearray(3 << 20)
    one = content_digest(received({}, bytes(big)))
    assert one != content_digest(received({}, bytes(big) + b"\0"))
    big[-1] = 1
    assert one != content_digest(received({}, bytes(big)))


def test_timeline_is_sorted_by_time() -> None:
    """Entries without a time are last."""
    headers: dict[str, Any] = {
        "x-death": [death("q", "rejected", 2)],
        "MT-Fault-ExceptionType": "E",
        "MT-Fault-Timestamp": "2023-11-14T22:13:20Z",
        "hopback-redrives": 1,
        "hopback-redrive-job": "job-1",
    }
    found = received(headers)
    told = [event.what for event in timeline(found, read_dead_letter(found, 1))]
    assert told == [
        "left q (rejected 2 times)",
        "failed last in q: E",
        "re-driven, last by job job-1",
    ]


def test_timeline_puts_deaths_of_a_second_between_failures() -> None:
    """A broker reports whole seconds, Hopback fractions."""
    record = failure_from_reason("", kind="E")
    text = failure_json(type(record)(record.type, record.message, record.fingerprint, attempts=2,
                                     first=NOW - 99.8, last=NOW - 99.3))  # fmt: skip
    found = received(
        {
            "x-death": [death("q", "rejected")],
            "hopback-queue": "q",
            "hopback-attempts": 2,
            "hopback-failure": text,
        }
    )
    told = [event.what for event in timeline(found, read_dead_letter(found, 1))]
    assert told == ["failed first in q", "left q (rejected)", "failed last in q: E"]


def test_queue_without_plan_is_redriven_by_default_exchange() -> None:
    plan = stand_in_plan("q", "q.dlq")
    assert (plan.redrive.exchange, plan.redrive.routing_key, plan.redrive.reset) == ("", "q", True)


@pytest.mark.parametrize(
    ("headers", "attempts"),
    [
        ({"retry-count": 5}, (6, False)),
        ({"x-attempts": 3}, (3, False)),
        ({"retry-count": 1_700_000_000}, (0, True)),
        ({"error": "no stock", "retry-count": 5}, (6, False)),
    ],
)
def test_attempts_in_common_headers_are_shown(
    headers: dict[str, Any], attempts: tuple[int, bool]
) -> None:
    found = dead_letter(headers)
    assert (found.attempts, found.attempts_at_least) == attempts
