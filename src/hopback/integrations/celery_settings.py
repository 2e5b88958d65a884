"""Check the settings of a Celery application for values that can cause message loss.

See `CELERY_RULES` for the list of rules.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hopback.topology.hazards.rule import Finding, Severity

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["CELERY_RULES", "check_settings"]

CELERY_RULES: Mapping[str, str] = {
    "celery-acks-early": "Messages are acked before their tasks run.",
    "celery-worker-lost": "A task counts as failed and is acked if its process is killed.",
    "celery-worker-lost-loop": "A task that kills its process is redelivered forever.",
    "celery-failure-acked": "The message of a task is deleted when the task has finally failed.",
    "celery-failure-deleted": "A failed task is rejected, and its queue has no dead-letter exchange.",
    "celery-publish-unconfirmed": "The producer is not informed if the broker refuses a task.",
    "celery-transient": "Tasks are lost when the broker restarts.",
    "celery-eta-in-memory": "Delayed tasks wait unacked in a worker.",
    "celery-quorum-undetected": "Delays and prefetch do not work with quorum queues.",
    "celery-delay-classic": "Delayed tasks wait in classic queues.",
    "celery-visibility": "A broker other than RabbitMQ redelivers long tasks.",
    "celery-no-time-limit": "A task that hangs is redelivered while it runs.",
    "celery-pickle": "Every producer can run code in a worker.",
}
"""All rules and their descriptions."""

_AMQP = ("amqp", "pyamqp", "amqps", "librabbitmq")
_CONSUMER_TIMEOUT = "30 minutes by default (`consumer_timeout`)"
_MOST_NAMED = 5  # maximum number of task names to show


def check_settings(app: Any) -> tuple[Finding, ...]:
    """Check the settings, tasks and queues of a Celery application.

    This does not connect to the broker, so policies and the types of undeclared queues are not
    checked. Findings are sorted by severity.
    """
    app.finalize()
    found = [*_tasks(app), *_check_publish(app), *_queues(app), *_delays(app), *_content(app)]
    return tuple(sorted(found, key=lambda one: (one.severity.rank, one.rule, one.place)))


def _finding(
    rule: str, place: str, explanation: str, fix: str, severity: Severity = Severity.WARNING
) -> Finding:
    return Finding(rule, severity, place, explanation, fix)


def _own_tasks(app: Any) -> dict[str, Any]:
    """Return the tasks of the application without the built-in ones."""
    return {name: task for name, task in app.tasks.items() if not name.startswith("celery.")}


def _format_tasks(tasks: list[str]) -> str:
    """Format task names like `tasks a, b and 3 more`."""
    shown = ", ".join(f"`{name}`" for name in sorted(tasks)[:_MOST_NAMED])
    more = len(tasks) - _MOST_NAMED
    return f"tasks {shown}" + (f" and {more} more" if more > 0 else "")


def _those(app: Any, setting: str, chosen: list[str]) -> str:
    """Return the name of the setting if all tasks are affected, otherwise the names of the tasks."""
    everybody = len(chosen) == len(_own_tasks(app))
    return f"setting `{setting}`" if everybody else _format_tasks(chosen)


def _parks(app: Any) -> bool:
    """Return True if `park_failed_tasks` was called."""
    return getattr(app, "hopback_parks", False)


def _acks_on_failure(task: Any) -> bool:
    """Return True if failed tasks are acknowledged. The setting depends on the Celery version."""
    for name in ("acks_on_failure", "acks_on_failure_or_timeout"):
        value = getattr(task, name, None)
        if value is not None:
            return bool(value)
    return True


def _tasks(app: Any) -> Iterator[Finding]:
    tasks = _own_tasks(app) or {"": app.Task}
    early = [name for name, task in tasks.items() if not task.acks_late]
    late = {name: task for name, task in tasks.items() if task.acks_late}
    if early:
        yield _finding(
            "celery-acks-early",
            _those(app, "task_acks_late", early),
            "A message is acked when a worker takes it, before its task runs. If the worker or its "
            "machine dies, the tasks that it holds are lost.",
            "Set `task_acks_late = True`. Tasks may then run twice, so they must be idempotent.",
        )
    unheard = [name for name, task in late.items() if not task.reject_on_worker_lost]
    if unheard:
        yield _finding(
            "celery-worker-lost",
            _those(app, "task_reject_on_worker_lost", unheard),
            "When the process of a task is killed (out of memory, `kill -9`), the task counts as failed "
            "and its message is acked. The task is lost although it has not finished.",
            "Set `task_reject_on_worker_lost = True`, and a delivery limit on the queue.",
        )
    acked = [name for name, task in tasks.items() if _acks_on_failure(task)]
    if acked and not _parks(app):
        yield _finding(
            "celery-failure-acked",
            _those(app, "task_acks_on_failure_or_timeout", acked),
            "A task that has finally failed is acked. Only a log line and perhaps a result remain, and "
            "the task cannot be run again.",
            "Call `hopback.integrations.celery.park_failed_tasks(app)`. It parks failed tasks in a "
            "dead-letter queue, with the exception.",
        )
    if late and app.conf.task_time_limit is None:
        endless = [name for name, task in late.items() if task.time_limit is None]
        if endless:
            yield _finding(
                "celery-no-time-limit",
                _those(app, "task_time_limit", endless),
                f"A task may run for longer than the broker waits for its ack: {_CONSUMER_TIMEOUT}. "
                "The broker then closes the channel and redelivers all of its unacked messages.",
                "Set `task_time_limit` below the broker's timeout.",
                Severity.INFO,
            )


def _check_publish(app: Any) -> Iterator[Finding]:
    if _transport(app) not in _AMQP:
        return
    if not (app.conf.broker_transport_options or {}).get("confirm_publish"):
        yield _finding(
            "celery-publish-unconfirmed",
            "setting `broker_transport_options`",
            "`delay` and `apply_async` return before the broker has the message. If the connection "
            "breaks or the node dies at that moment, the task is lost without an error.",
            'Set `broker_transport_options = {"confirm_publish": True}`.',
        )


def _transport(app: Any) -> str:
    url = app.conf.broker_write_url or app.conf.broker_url or "amqp://"
    first = url[0] if isinstance(url, list | tuple) else str(url).split(";")[0]
    return str(first).partition("://")[0].partition("+")[0]


def _queues(app: Any) -> Iterator[Finding]:
    rejects = [name for name, task in _own_tasks(app).items() if not _acks_on_failure(task)]
    requeues = [name for name, task in _own_tasks(app).items() if task.reject_on_worker_lost]
    transient = str(app.conf.task_default_delivery_mode) in ("1", "transient")
    if transient:
        yield _finding(
            "celery-transient",
            "setting `task_default_delivery_mode`",
            "Messages are only kept in memory. If the broker restarts, all tasks are lost.",
            "Remove the setting. Tasks are then persistent.",
            Severity.ERROR,
        )
    for name, queue in app.amqp.queues.items():
        arguments = queue.queue_arguments or {}
        place = f"queue `{name}`"
        if not queue.durable or queue.auto_delete or queue.exclusive:
            yield _finding(
                "celery-transient",
                place,
                "The queue is not durable, or is deleted with its last consumer. Its tasks are then lost.",
                "Declare it with `durable=True` and without `auto_delete` and `exclusive`.",
                Severity.ERROR,
            )
        if rejects and not _parks(app) and "x-dead-letter-exchange" not in arguments:
            yield _finding(
                "celery-failure-deleted",
                place,
                f"Failed tasks of {_format_tasks(rejects)} are rejected, and a queue without a dead-letter "
                "exchange deletes rejected messages. (Policies are not considered here.)",
                "Give the queue `x-dead-letter-exchange` and `x-dead-letter-routing-key`, or call "
                "`hopback.integrations.celery.park_failed_tasks(app)`.",
                Severity.ERROR,
            )
        is_limited = arguments.get("x-queue-type") == "quorum" and "x-delivery-limit" in arguments
        if requeues and not is_limited:
            yield _finding(
                "celery-worker-lost-loop",
                place,
                f"If one of the {_format_tasks(requeues)} kills its process, it is requeued and kills "
                "the next process. A classic queue, or before RabbitMQ 4.0 a quorum queue without "
                "`x-delivery-limit`, has no delivery limit, so this never ends.",
                "Use a quorum queue with `x-delivery-limit`, and a dead-letter exchange.",
            )


def _delays(app: Any) -> Iterator[Finding]:
    transport = _transport(app)
    if transport not in _AMQP:
        options = app.conf.broker_transport_options or {}
        seconds = options.get("visibility_timeout", "its default of an hour or less")
        yield _finding(
            "celery-visibility",
            "setting `broker_url`",
            f"The broker is {transport}. Tasks that are not acked within the visibility timeout ({seconds}) "
            "are redelivered, even if they are still running or waiting for their eta.",
            "Set `visibility_timeout` above the longest eta and the longest task, or use RabbitMQ.",
        )
        return
    quorum = [
        name
        for name, queue in app.amqp.queues.items()
        if (queue.queue_arguments or {}).get("x-queue-type") == "quorum"
    ]
    if not quorum:
        yield _finding(
            "celery-eta-in-memory",
            "settings `task_queues`, `task_default_queue_type`",
            "A task with `eta` or `countdown`, and every retry, waits in the memory of a worker, and its "
            f"message is unacked. After {_CONSUMER_TIMEOUT}, the broker closes the channel of the worker "
            "and redelivers all of its unacked messages.",
            'Use quorum queues (`task_default_queue_type = "quorum"`, Celery 5.5 and later). Delayed '
            "tasks are then kept by the broker.",
        )
    elif not app.conf.get("worker_detect_quorum_queues", False):
        yield _finding(
            "celery-quorum-undetected",
            f"queue `{quorum[0]}`",
            "Quorum queues refuse the global prefetch of Celery, and delayed tasks stay in memory.",
            "Set `worker_detect_quorum_queues = True` (Celery 5.5 and later).",
            Severity.ERROR,
        )
    if quorum and app.conf.get("broker_native_delayed_delivery_queue_type", "") == "classic":
        yield _finding(
            "celery-delay-classic",
            "setting `broker_native_delayed_delivery_queue_type`",
            "Delayed tasks move from queue to queue, and a classic queue moves messages at most once. "
            "Messages in transit are lost when the node dies.",
            "Remove the setting. Delay queues are then quorum queues.",
        )


def _content(app: Any) -> Iterator[Finding]:
    accepted = {str(one) for one in app.conf.accept_content or ()}
    if accepted & {"pickle", "application/x-python-serialize"}:
        yield _finding(
            "celery-pickle",
            "setting `accept_content`",
            "A pickle can run any code when it is loaded. Every user who can publish to a queue can run "
            "code in its workers. Operators cannot see the content, because Hopback does not load pickles.",
            'Set `task_serializer = "json"` and `accept_content = ["json"]`.',
        )
