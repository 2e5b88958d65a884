"""kombu with py-amqp. It blocks, and each publish is confirmed before the next one."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import kombu

from benchmarks.clients.measuring import LINGER_S, Stopwatch, run_sync

if TYPE_CHECKING:
    from benchmarks.workload import Job


def _connection(job: Job) -> kombu.Connection:
    return kombu.Connection(job.url, transport_options={"confirm_publish": True})


def consume(job: Job, watch: Stopwatch) -> None:
    done = 0

    def on_message(message: Any) -> None:
        nonlocal done
        message.ack()
        done += 1

    with _connection(job) as connection:
        channel = connection.channel()
        queue = kombu.Queue(job.queue, channel=channel, no_declare=True)
        consumer = kombu.Consumer(
            channel,
            [queue],
            on_message=on_message,
            auto_declare=False,
            prefetch_count=job.prefetch,
        )
        watch.start()
        with consumer:
            while done < job.count:
                connection.drain_events(timeout=30)
            watch.stop()
            time.sleep(LINGER_S)


def publish_one(job: Job, watch: Stopwatch) -> None:
    with _connection(job) as connection:
        producer = connection.Producer(auto_declare=False)
        watch.start()
        for _ in range(job.count):
            producer.publish(
                job.bytes,
                routing_key=job.queue,
                content_type="application/json",
                content_encoding="utf-8",
                delivery_mode=2,
                mandatory=True,
            )
        watch.stop()
        time.sleep(LINGER_S)


if __name__ == "__main__":
    run_sync({"consume": consume, "publish-one": publish_one})
