"""Dramatiq against a broker: a failed message moves to the XQ, waits there and returns.

Dramatiq's XQ has a time to live but no dead-letter exchange. A policy, as an operator would set it,
routes expired messages back to `work`.
"""

import base64
import json
import sys
import time
import urllib.request

import dramatiq
import pika.exceptions
from dramatiq.brokers.rabbitmq import RabbitmqBroker


def main(url: str, management: str) -> dict:
    dramatiq.brokers.rabbitmq.DEAD_MESSAGE_TTL = 200
    broker = RabbitmqBroker(url=url, confirm_delivery=True)
    dramatiq.set_broker(broker)

    @dramatiq.actor(queue_name="work", max_retries=0)
    def work(_body: str) -> None:
        raise LookupError("no such customer")

    broker.declare_queue("work", ensure=True)
    _set_policy(management)
    work.send("an order")
    returned = _return_code(broker)
    worker = dramatiq.Worker(broker, worker_threads=1)
    worker.start()
    _wait_for(lambda: broker.get_queue_message_counts("work")[2] == 1)
    worker.stop()
    properties, body = _wait_for(lambda: _get_message(broker))
    deaths = [[death["queue"], death["reason"]] for death in properties.headers["x-death"]]
    broker.close()
    [text] = json.loads(body)["args"]
    return {"confirmed": True, "returned": returned, "body": text, "deaths": deaths}


def _return_code(broker: RabbitmqBroker) -> int:
    try:
        broker.channel.basic_publish("", "nowhere", b"lost", mandatory=True)
    except pika.exceptions.UnroutableError as error:
        return error.messages[0].method.reply_code
    return 0


def _get_message(broker: RabbitmqBroker) -> tuple | None:
    method, properties, body = broker.channel.basic_get("work", auto_ack=True)
    return None if method is None else (properties, body)


def _set_policy(management: str) -> None:
    definition = {"dead-letter-exchange": "", "dead-letter-routing-key": "work"}
    policy = {"pattern": r"^work\.XQ$", "definition": definition, "apply-to": "queues"}
    request = urllib.request.Request(
        f"{management}/api/policies/%2F/back", json.dumps(policy).encode(), method="PUT"
    )
    login = base64.b64encode(b"guest:guest").decode()
    request.add_header("Authorization", f"Basic {login}")
    urllib.request.urlopen(request, timeout=10).close()


def _wait_for(check: object) -> object:
    for _ in range(500):
        if found := check():
            return found
        time.sleep(0.02)
    raise TimeoutError("expected a message to arrive")


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], sys.argv[2])))  # noqa: T201 - the result
