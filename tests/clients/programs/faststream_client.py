"""FastStream against a broker: publish, confirm, return, a retry through a TTL queue, x-death."""

import asyncio
import json
import sys

from aio_pika.exceptions import DeliveryError
from faststream import AckPolicy
from faststream.rabbit import Channel, RabbitBroker, RabbitMessage, RabbitQueue

_BACK = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "work", "x-message-ttl": 200}
_AWAY = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "retry"}


async def main(url: str) -> dict:
    broker = RabbitBroker(url, default_channel=Channel(on_return_raises=True), logger=None)
    seen: asyncio.Queue[RabbitMessage] = asyncio.Queue()
    queue = RabbitQueue("work", durable=True, arguments=_AWAY)

    @broker.subscriber(queue, ack_policy=AckPolicy.MANUAL)
    async def take(_body: str, message: RabbitMessage) -> None:
        if "x-death" in message.headers:
            await message.ack()
            seen.put_nowait(message)
        else:
            await message.reject(requeue=False)

    async with broker:
        await broker.declare_queue(RabbitQueue("retry", durable=True, arguments=_BACK))
        await broker.start()
        confirmed = await broker.publish("an order", "work", persist=True)
        returned = 0
        try:
            await broker.publish("lost", "nowhere")
        except DeliveryError as error:
            returned = error.message.delivery.reply_code
        back = await asyncio.wait_for(seen.get(), 10)
    deaths = [[_text(death["queue"]), _text(death["reason"])] for death in back.headers["x-death"]]
    return {
        "confirmed": type(confirmed).__name__ == "Ack",
        "returned": returned,
        "body": back.body.decode(),
        "deaths": deaths,
    }


def _text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main(sys.argv[1]))))  # noqa: T201 - the result
