"""aio-pika against a broker: publish, confirm, return, a retry through a TTL queue, x-death."""

import asyncio
import json
import sys

import aio_pika
import aio_pika.exceptions

_BACK = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "work", "x-message-ttl": 200}
_AWAY = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "retry"}


async def main(url: str) -> dict:
    connection = await aio_pika.connect_robust(url)
    channel = await connection.channel(publisher_confirms=True, on_return_raises=True)
    work = await channel.declare_queue("work", durable=True, arguments=_AWAY)
    await channel.declare_queue("retry", durable=True, arguments=_BACK)
    message = aio_pika.Message(b"an order", delivery_mode=2)
    confirmed = await channel.default_exchange.publish(message, "work")
    returned = 0
    try:
        await channel.default_exchange.publish(aio_pika.Message(b"lost"), "nowhere")
    except aio_pika.exceptions.DeliveryError as error:
        returned = error.message.delivery.reply_code
    async with work.iterator() as deliveries:
        await (await anext(deliveries)).nack(requeue=False)
        back = await anext(deliveries)
        await back.ack()
    deaths = [[_text(death["queue"]), _text(death["reason"])] for death in back.headers["x-death"]]
    await connection.close()
    stored = type(confirmed).__name__ == "Ack"
    return {"confirmed": stored, "returned": returned, "body": back.body.decode(), "deaths": deaths}


def _text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main(sys.argv[1]))))  # noqa: T201 - the result
