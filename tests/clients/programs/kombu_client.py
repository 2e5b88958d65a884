"""kombu against a broker: publish, confirm, return, a retry through a TTL queue, x-death."""

import json
import sys

import kombu

_AWAY = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "retry"}
_BACK = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "work", "x-message-ttl": 200}


def main(url: str) -> dict:
    returned, seen = [], []

    def take(_body: object, message: kombu.Message) -> None:
        seen.append(message)
        if len(seen) == 1:
            message.reject()
        else:
            message.ack()

    options = {"confirm_publish": True}
    with kombu.Connection(url, transport_options=options) as connection:
        channel = connection.channel()
        work = kombu.Queue("work", queue_arguments=_AWAY, channel=channel)
        work.declare()
        kombu.Queue("retry", queue_arguments=_BACK, channel=channel).declare()
        producer = kombu.Producer(
            channel, on_return=lambda error, *_rest: returned.append(error.reply_code)
        )
        producer.publish("an order", routing_key="work", mandatory=True, serializer="raw")
        producer.publish("lost", routing_key="nowhere", mandatory=True, serializer="raw")
        with kombu.Consumer(channel, [work], callbacks=[take], accept=["application/data"]):
            while len(seen) < 2:
                connection.drain_events(timeout=10)
    deaths = [[death["queue"], death["reason"]] for death in seen[1].headers["x-death"]]
    body = bytes(seen[1].body) if not isinstance(seen[1].body, str) else seen[1].body.encode()
    code = returned[0] if returned else 0
    return {"confirmed": True, "returned": code, "body": body.decode(), "deaths": deaths}


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1])))  # noqa: T201 - the result
