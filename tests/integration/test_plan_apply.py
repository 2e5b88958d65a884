"""Plan and apply on a real RabbitMQ, as a library and as the command."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from hopback.broker.apply import apply, live_plan
from hopback.broker.limits import DLQ_LIMIT_PREFIX, lift_policy, restore_limits
from hopback.broker.management import Management, ManagementAddress
from hopback.broker.rabbitmq import RabbitMQ
from hopback.cli.live_broker import apply as apply_command
from hopback.cli.live_broker import plan as plan_command
from hopback.designs import DESIGNS
from hopback.errors import TopologyConflict, UnsafeOperation
from hopback.message import Message
from hopback.topology.model import Binding, Exchange, Policy, Queue, Topology

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from click import Command

    from hopback.broker.port import Connection
    from tests.harness.shared import SharedNode

pytestmark = pytest.mark.broker


@pytest.fixture
async def management(rabbitmq: SharedNode) -> AsyncIterator[Management]:
    """A client of the run's node."""
    async with Management(ManagementAddress.derive(None, rabbitmq.management_url)) as client:
        yield client


@pytest.fixture
async def connection(amqp_url: str) -> AsyncIterator[Connection]:
    """A connection to this test's virtual host."""
    opened = await RabbitMQ(amqp_url).connect("test")
    yield opened
    await opened.close()


@pytest.mark.parametrize("hardened", [False, True], ids=["faithful", "hardened"])
@pytest.mark.parametrize("name", sorted(DESIGNS))
async def test_every_design_is_applied_and_then_settled(
    connection: Connection, management: Management, vhost: str, name: str, hardened: bool
) -> None:
    """The second plan is empty."""
    desired = DESIGNS[name].build({}, hardened=hardened)
    planned = await live_plan(desired, connection, management, vhost)
    assert not planned.is_up_to_date
    await apply(planned, connection, management, vhost=vhost)
    after = await live_plan(desired, connection, management, vhost)
    assert after.is_up_to_date
    assert after.diff.extra == ()


async def test_plan_by_amqp_names_same_conflicts_as_management_api(
    connection: Connection, management: Management, vhost: str
) -> None:
    await apply(
        await live_plan(
            DESIGNS["ratatoskr"].build({}, hardened=False), connection, management, vhost
        ),
        connection,
        management,
        vhost=vhost,
    )
    desired = DESIGNS["ratatoskr"].build({}, hardened=True)
    seen = await live_plan(desired, connection, management, vhost)
    probed = await live_plan(desired, connection, None, vhost)
    assert {c.name for c in seen.conflicts} == {c.name for c in probed.conflicts}
    for one, other in zip(seen.conflicts, probed.conflicts, strict=True):
        assert other.differences[0].field in {difference.field for difference in one.differences}
    with pytest.raises(TopologyConflict):
        await apply(seen, connection, management, vhost=vhost)


WATCH_S = 2.0
"""Four ticks of the node, which are shorter than those of production."""

SMALL = Topology(
    "small",
    (Exchange("x"),),
    (Queue("a", arguments={"x-message-ttl": 60_000}),),
    (Binding("x", "a", "k"),),
)


async def make_other(connection: Connection) -> None:
    """A queue `a` without the argument, bound by another key too."""
    channel = await connection.open_channel()
    await channel.declare_exchange(Exchange("x"))
    await channel.declare_queue(Queue("a"))
    await channel.bind(Binding("x", "a", "k"))
    await channel.bind(Binding("x", "a", "other"))
    await channel.close()


async def test_queue_with_messages_is_not_replaced(
    connection: Connection, management: Management, vhost: str
) -> None:
    await make_other(connection)
    channel = await connection.open_channel()
    await channel.publish(Message("x", "k", b"precious"))
    planned = await live_plan(SMALL, connection, management, vhost)
    (risk,) = planned.at_risk
    assert (risk.queue, risk.ready) == ("a", 1)
    with pytest.raises(UnsafeOperation, match="1 messages at risk"):
        await apply(planned, connection, management, vhost=vhost, replace=["a"], watch_s=WATCH_S)
    delivery = await channel.get("a")
    assert delivery is not None
    assert delivery.body == b"precious"


async def test_message_published_after_plan_is_kept(
    connection: Connection, management: Management, vhost: str
) -> None:
    await make_other(connection)
    planned = await live_plan(SMALL, connection, management, vhost)
    channel = await connection.open_channel()
    await channel.publish(Message("x", "k", b"late"))
    await apply(planned, connection, management, vhost=vhost, replace=["a"], watch_s=WATCH_S)
    assert (await live_plan(SMALL, connection, management, vhost)).is_up_to_date
    found = await channel.get("a")
    assert found is not None
    assert found.body == b"late"


async def test_replaced_queue_keeps_all_bindings(
    connection: Connection, management: Management, vhost: str
) -> None:
    """This includes bindings unknown to the topology."""
    await make_other(connection)
    planned = await live_plan(SMALL, connection, management, vhost)
    await apply(planned, connection, management, vhost=vhost, replace=["a"], watch_s=WATCH_S)
    assert (await live_plan(SMALL, connection, management, vhost)).is_up_to_date
    channel = await connection.open_channel()
    await channel.publish(Message("x", "other", b"routed"))


async def test_lifted_limits_are_recorded_and_reversible(
    management: Management, connection: Connection, vhost: str
) -> None:
    """The lifting policy has a higher priority. Deleting it restores the former policy."""
    below = Policy("ops", "^dlq$", {"max-length": 7}, 5, "queues")
    # 3.10 has no default limit and refuses -1, so an explicit limit is used here.
    lifted = lift_policy(DLQ_LIMIT_PREFIX, Queue("dlq"), [below])
    lifted = Policy(lifted.name, lifted.pattern, {"max-length": 7}, lifted.priority, "queues")
    await management.put_policy(vhost, below)
    await management.put_policy(vhost, lifted)
    (taken,) = await restore_limits(connection, management, vhost)
    assert taken.queue == "dlq"
    assert await management.policies(vhost) == (below,)
    assert await restore_limits(connection, management, vhost) == ()


async def run(
    command: Command, name: str, url: str, rabbitmq: SharedNode, *more: str
) -> tuple[int, str]:
    """Run the command in a thread, because it starts an event loop."""
    arguments: Sequence[str] = (
        name,
        "--broker",
        url,
        "--management",
        rabbitmq.management_url,
        *more,
    )
    result = await asyncio.to_thread(
        lambda: CliRunner().invoke(command, arguments, standalone_mode=False)
    )
    if result.exception is not None:
        raise result.exception
    return int(result.return_value), result.stdout


async def test_plan_and_apply_commands_settle_topology(amqp_url: str, rabbitmq: SharedNode) -> None:
    code, text = await run(
        plan_command, "event-bus", amqp_url, rabbitmq, "-o", "json", "--detailed-exit-code"
    )
    missing = json.loads(text)
    assert (code, missing["settled"], missing["conflicts"]) == (10, False, [])
    code, text = await run(apply_command, "event-bus", amqp_url, rabbitmq, "--yes", "-o", "json")
    assert (code, len(json.loads(text)["done"])) == (0, len(missing["create"]))
    code, text = await run(apply_command, "event-bus", amqp_url, rabbitmq, "--yes")
    assert (code, text.startswith("Nothing to do")) == (0, True)
    code, text = await run(
        plan_command, "event-bus", amqp_url, rabbitmq, "-o", "json", "--detailed-exit-code"
    )
    assert (code, json.loads(text)["settled"]) == (0, True)


async def test_dry_run_of_apply_changes_nothing(amqp_url: str, rabbitmq: SharedNode) -> None:
    _, before = await run(plan_command, "raffle", amqp_url, rabbitmq, "-o", "json")
    await run(apply_command, "raffle", amqp_url, rabbitmq, "--dry-run")
    _, after = await run(plan_command, "raffle", amqp_url, rabbitmq, "-o", "json")
    assert json.loads(before) == json.loads(after)
