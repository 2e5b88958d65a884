"""Settings of Celery applications that can lose messages."""

# mypy: disable-error-code="attr-defined, import-untyped, no-untyped-call"

from __future__ import annotations

from typing import Any

import pytest
from celery import Celery
from kombu import Queue

from hopback.integrations.celery import park_failed_tasks
from hopback.integrations.celery_settings import CELERY_RULES, check_settings
from hopback.topology.hazards.rule import Severity

_QUORUM = {"x-queue-type": "quorum", "x-dead-letter-exchange": "", "x-delivery-limit": 20}
_SAFE: dict[str, Any] = {
    "task_acks_late": True,
    "task_reject_on_worker_lost": True,
    "task_time_limit": 600,
    "broker_transport_options": {"confirm_publish": True},
    "task_queues": [Queue("tasks", queue_arguments=_QUORUM)],
    "task_default_queue": "tasks",
}


def _work() -> None:
    """A task without work."""


def _app(**settings: Any) -> Any:
    app = Celery("shop", broker=settings.pop("broker", "amqp://localhost//"), set_as_current=False)
    app.conf.update(settings)
    app.task(name="charge")(_work)
    return app


def _found(**settings: Any) -> dict[str, Severity]:
    return {one.rule: one.severity for one in check_settings(_app(**settings))}


def test_safe_celery_application_has_no_findings() -> None:
    app = _app(**_SAFE)
    park_failed_tasks(app)
    assert check_settings(app) == ()


def test_parked_tasks_need_no_dead_letter_exchange() -> None:
    """`park_failed_tasks` also parks tasks that Celery would reject."""
    queue = Queue("tasks", queue_arguments={"x-queue-type": "quorum", "x-delivery-limit": 20})
    app = _app(**{**_SAFE, "task_acks_on_failure_or_timeout": False, "task_queues": [queue]})
    park_failed_tasks(app)
    assert check_settings(app) == ()


def test_celery_defaults_have_findings() -> None:
    assert [*_found()] == [
        "celery-acks-early",
        "celery-eta-in-memory",
        "celery-failure-acked",
        "celery-publish-unconfirmed",
    ]


_WARNING, _ERROR, _INFO = Severity.WARNING, Severity.ERROR, Severity.INFO


@pytest.mark.parametrize(
    ("changed", "rule", "severity"),
    [
        ({"task_acks_late": False}, "celery-acks-early", _WARNING),
        ({"task_reject_on_worker_lost": False}, "celery-worker-lost", _WARNING),
        ({"task_queues": [Queue("tasks")]}, "celery-worker-lost-loop", _WARNING),
        (
            {"task_queues": [Queue("tasks", queue_arguments={"x-queue-type": "quorum"})]},
            "celery-worker-lost-loop",
            _WARNING,
        ),
        ({}, "celery-failure-acked", _WARNING),
        (
            {"task_acks_on_failure_or_timeout": False, "task_queues": [Queue("tasks")]},
            "celery-failure-deleted",
            _ERROR,
        ),
        ({"broker_transport_options": {}}, "celery-publish-unconfirmed", _WARNING),
        ({"task_default_delivery_mode": "transient"}, "celery-transient", _ERROR),
        ({"task_queues": [Queue("tasks", durable=False)]}, "celery-transient", _ERROR),
        ({"task_queues": [Queue("tasks")]}, "celery-eta-in-memory", _WARNING),
        ({"worker_detect_quorum_queues": False}, "celery-quorum-undetected", _ERROR),
        (
            {"broker_native_delayed_delivery_queue_type": "classic"},
            "celery-delay-classic",
            _WARNING,
        ),
        ({"broker": "redis://localhost"}, "celery-visibility", _WARNING),
        ({"task_time_limit": None}, "celery-no-time-limit", _INFO),
        ({"accept_content": ["json", "pickle"]}, "celery-pickle", _WARNING),
    ],
)
def test_each_unsafe_setting_has_its_finding(
    changed: dict[str, Any], rule: str, severity: Severity
) -> None:
    assert _found(**{**_SAFE, **changed})[rule] is severity


def test_every_celery_rule_has_a_test() -> None:
    marks = test_each_unsafe_setting_has_its_finding.pytestmark
    seen = {case[1] for case in marks[0].args[1]}
    assert seen == set(CELERY_RULES)


def test_finding_names_its_tasks() -> None:
    app = _app(**_SAFE)
    app.task(name="refund", acks_late=False)(_work)
    places = {one.rule: one.place for one in check_settings(app)}
    assert places["celery-acks-early"] == "tasks `refund`"
    assert places["celery-failure-acked"] == "setting `task_acks_on_failure_or_timeout`"
