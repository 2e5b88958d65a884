"""Delivery limits lifted by policy, on the RabbitMQ versions that have a default one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from hopback.broker.apply import apply, live_plan, restore_limits
from hopback.broker.management import Management, ManagementAddress
from hopback.broker.rabbitmq import RabbitMQ
from hopback.designs import DESIGNS
from hopback.errors import UnsafeOperation
from hopback.message import Message
from hopback.topology.model import Policy
from tests.harness.versions import SUITES, installations

if TYPE_CHECKING:
    from collections.abc import Callable

    from hopback.broker.port import Connection
    from tests.harness.rabbitmq import RabbitNode

pytestmark = [pytest.mark.broker, pytest.mark.all_brokers]

DESIRED = DESIGNS["ratatoskr"].build({"queue": "q"}, hardened=False)
OPERATORS = Policy("ops", "dlq$", {"max-length": 1000}, 3, "queues")


async def look(connection: Connection, queue: str, times: int) -> int:
    """Take a message and let the channel go, so many times; how often there was one."""
    seen = 0
    for _ in range(times):
        channel = await connection.open_channel()
        seen += await channel.get(queue) is not None
        await channel.close()
    return seen


@pytest.mark.parametrize("suite", sorted(SUITES))
async def test_a_dead_letter_queue_can_be_looked_at_for_ever(
    start_rabbitmq: Callable[..., RabbitNode], suite: str
) -> None:
    """Forty looks harm nothing while the limit is lifted, and it is not restored over their head."""
    node = start_rabbitmq(installation=installations()[suite])
    connection = await RabbitMQ(node.url).connect("test")
    async with Management(ManagementAddress.derive(None, node.management_url)) as management:
        await management.put_policy("/", OPERATORS)
        planned = await live_plan(DESIRED, connection, management, "/")
        await apply(planned, connection, management, vhost="/", take_offers=True)
        after = await live_plan(DESIRED, connection, management, "/")
        assert (after.settled, after.offers) == (True, ())
        channel = await connection.open_channel()
        await channel.publish(Message("", "q.dlq", b"precious"))
        assert await look(connection, "q.dlq", 40) == 40
        with pytest.raises(UnsafeOperation, match="came back up to 41 times"):
            await restore_limits(connection, management, "/")
        assert await look(connection, "q.dlq", 40) == 40
        await channel.purge_queue("q.dlq")
        taken = await restore_limits(connection, management, "/")
        assert {limit.queue for limit in taken} == {"q", "q.dlq"}
        assert await management.policies("/") == (OPERATORS,)
        await channel.publish(Message("", "q.dlq", b"at risk again"))
        assert await look(connection, "q.dlq", 22) == 21
    await connection.close()
