"""Dramatiq with an empty actor. Its worker has eight threads, which is the default."""

from __future__ import annotations

import os
import threading
import time
from typing import TYPE_CHECKING, Any

from benchmarks.clients.measuring import LINGER_S, Stopwatch, run_sync

if TYPE_CHECKING:
    from benchmarks.workload import Job


def _broker(job: Job) -> Any:
    os.environ["dramatiq_queue_prefetch"] = str(job.prefetch)  # noqa: SIM112
    from dramatiq.brokers.rabbitmq import RabbitmqBroker

    class Broker(RabbitmqBroker):
        """Declares the queue in the same way as the benchmark."""

        def _build_queue_arguments(self, queue_name: str) -> dict[str, object]:
            arguments = super()._build_queue_arguments(queue_name)
            if job.queue_type == "quorum":
                arguments["x-queue-type"] = "quorum"
            return arguments

    return Broker(url=job.url, confirm_delivery=True)


def consume(job: Job, watch: Stopwatch) -> None:
    broker = _broker(job)
    import dramatiq

    done, counting, finished = 0, threading.Lock(), threading.Event()

    def noop(text: str) -> None:
        nonlocal done
        with counting:
            done += 1
        if done == job.count:
            finished.set()

    dramatiq.actor(noop, broker=broker, queue_name=job.queue, actor_name="noop")
    worker = dramatiq.Worker(broker, worker_timeout=100)
    watch.start()
    worker.start()
    finished.wait()
    watch.stop()
    time.sleep(LINGER_S)
    worker.stop()
    broker.close()


def publish_one(job: Job, watch: Stopwatch) -> None:
    broker = _broker(job)
    import dramatiq

    actor = dramatiq.actor(
        lambda text: None, broker=broker, queue_name=job.queue, actor_name="noop"
    )
    text = "a" * 800
    actor.message(text)
    broker.declare_queue(job.queue, ensure=True)
    watch.start()
    for _ in range(job.count):
        actor.send(text)
    watch.stop()
    time.sleep(LINGER_S)
    broker.close()


if __name__ == "__main__":
    run_sync({"consume": consume, "publish-one": publish_one})
