"""Celery against a broker: a task is rejected, waits in a TTL queue and returns."""

import json
import sys
import threading

import celery
import kombu
from celery.contrib.testing.worker import start_worker
from celery.exceptions import Reject

_AWAY = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "retry"}
_BACK = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "work", "x-message-ttl": 200}


def main(url: str) -> dict:
    app = celery.Celery("shop", broker=url)
    app.conf.update(
        task_queues=[kombu.Queue("work", routing_key="work", queue_arguments=_AWAY)],
        task_default_queue="work",
        task_default_exchange="",
        task_default_routing_key="work",
        task_acks_late=True,
        broker_transport_options={"confirm_publish": True},
        worker_hijack_root_logger=False,
    )
    found, arrived = {}, threading.Event()

    @app.task(bind=True, name="work")
    def work(self: celery.Task, body: str) -> None:
        deaths = self.request.get("x-death")
        if not deaths:
            raise Reject("not now", requeue=False)
        found["body"] = body
        found["deaths"] = [[death["queue"], death["reason"]] for death in deaths]
        arrived.set()

    with app.connection_for_write() as connection:
        kombu.Queue("retry", queue_arguments=_BACK, channel=connection.channel()).declare()
        found["returned"] = _return_code(connection)
    with start_worker(
        app,
        pool="threads",
        concurrency=1,
        perform_ping_check=False,
        loglevel="error",
        shutdown_timeout=40,
    ):
        work.apply_async(("an order",))
        arrived.wait(15)
    return {"confirmed": True, **found}


def _return_code(connection: kombu.Connection) -> int:
    """Return the reply code of an unroutable message, over Celery's connection."""
    codes: list[int] = []
    producer = kombu.Producer(
        connection.channel(), on_return=lambda error, *_rest: codes.append(error.reply_code)
    )
    producer.publish("lost", routing_key="nowhere", mandatory=True)
    return codes[0] if codes else 0


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1])))  # noqa: T201 - the result
