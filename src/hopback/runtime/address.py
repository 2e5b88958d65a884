"""Convert addresses to brokers."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hopback.broker.port import Broker


def broker_at(broker: Broker | str) -> Broker:
    if isinstance(broker, str):
        from hopback.broker.rabbitmq import RabbitMQ

        return RabbitMQ(broker)
    if not hasattr(broker, "connect"):
        raise TypeError(
            "broker: expected an address such as 'amqp://user:password@host/vhost', or a broker such as"
            f" RabbitMQ(…), got {type(broker).__name__}"
        )
    return broker
