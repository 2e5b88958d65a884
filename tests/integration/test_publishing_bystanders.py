"""Messages whose publish the broker refuses affect no other message.

`tests/faults/publishing.py` has more.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import pytest

from hopback import RabbitMQ
from hopback.broker import EmbeddedBroker
from tests.faults.publishing import (
    MAX_BODY,
    OFFENCES,
    WITHDRAWALS,
    run_beside,
    run_beside_forged,
    user_with_rights,
)

if TYPE_CHECKING:
    from hopback.broker.embedded.connection import EmbeddedConnection
    from hopback.broker.embedded.rights import Right
    from tests.harness.shared import SharedNode


class _Rights:
    """May write everywhere but to one exchange and to some topic keys."""

    def allows(self, right: Right, name: str) -> bool:
        return not (right == "write" and name == "forbidden")

    def allows_topic(self, right: Right, exchange: str, key: str) -> bool:
        return key.startswith("ok.")


class _Restricted(EmbeddedBroker):
    async def connect(self, name: str = "hopback") -> EmbeddedConnection:
        connection = await super().connect(name)
        if name != "operator":
            connection.session.rights = _Rights()
        return connection


async def test_refused_publishes_harm_no_other_message_on_the_embedded_broker() -> None:
    broker = _Restricted(max_body_bytes=MAX_BODY)
    found = await run_beside(broker, broker, *OFFENCES, messages=200)
    assert (found.harm_count, found.offenders_parked) == (0, found.offenders)


@pytest.mark.broker
async def test_refused_publishes_harm_no_other_message(rabbitmq: SharedNode, vhost: str) -> None:
    user = f"u{uuid.uuid4().hex[:10]}"
    url = user_with_rights(rabbitmq.management, rabbitmq.url + vhost, vhost, user)
    try:
        found = await run_beside(
            RabbitMQ(url),
            RabbitMQ(rabbitmq.url + vhost),
            *(offence for offence in OFFENCES if offence != "body too large"),
            messages=200,
        )
    finally:
        rabbitmq.management.call("DELETE", f"/users/{user}")
    assert (found.harm_count, found.offenders_parked) == (0, found.offenders)


async def test_exchange_deleted_in_use_parks_and_repeats_no_other_message() -> None:
    """Interrupted publishes are sent again, so some outputs may arrive twice."""
    broker = EmbeddedBroker()

    async def delete() -> None:
        connection = await broker.connect("operator")
        await (await connection.open_channel()).delete_exchange("used")
        await connection.close()

    found = await run_beside(broker, broker, WITHDRAWALS[0], messages=200, withdraw=delete)
    assert (found.parked, found.again, found.missing) == (0, 0, 0)
    assert found.doubled <= 20


@pytest.mark.broker
async def test_forged_reply_address_affects_no_other_reply_or_publish(amqp_url: str) -> None:
    """RabbitMQ 3.10 closes the connection on which a reply to such an address is published."""
    found = await run_beside_forged(RabbitMQ(amqp_url), requests=100, share=0.1)
    assert (found.harm_count, found.offenders_parked > 0) == (0, True)
