"""pika against a broker: publish, confirm, return, a retry through a TTL queue, x-death."""

import json
import sys

import pika
import pika.exceptions

_QUEUES = {
    "work": {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "retry"},
    "retry": {
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": "work",
        "x-message-ttl": 200,
    },
}


def main(url: str) -> dict:
    connection = pika.BlockingConnection(pika.URLParameters(url))
    channel = connection.channel()
    channel.confirm_delivery()
    for name, arguments in _QUEUES.items():
        channel.queue_declare(name, durable=True, arguments=arguments)
    channel.basic_publish("", "work", b"an order", mandatory=True)
    returned = 0
    try:
        channel.basic_publish("", "nowhere", b"lost", mandatory=True)
    except pika.exceptions.UnroutableError as error:
        returned = error.messages[0].method.reply_code
    deliveries = channel.consume("work")
    method, _, _ = next(deliveries)
    channel.basic_nack(method.delivery_tag, requeue=False)
    method, properties, body = next(deliveries)
    channel.basic_ack(method.delivery_tag)
    deaths = [[death["queue"], death["reason"]] for death in properties.headers["x-death"]]
    connection.close()
    return {"confirmed": True, "returned": returned, "body": body.decode(), "deaths": deaths}


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1])))  # noqa: T201 - the result
