"""Migrating on a real RabbitMQ: every faithful design to its hardened form, with messages inside."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from hopback.broker.declare import declare
from hopback.broker.management import Management, ManagementAddress
from hopback.broker.migrate import migrate, migration
from hopback.broker.rabbitmq import RabbitMQ
from hopback.cli.exits import CommandFailed
from hopback.cli.live_broker import migrate as migrate_command
from hopback.designs import DESIGNS
from hopback.errors import UnsafeOperation
from hopback.message import Message, Properties

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from hopback.topology.model import Topology
    from tests.harness.shared import SharedNode

pytestmark = pytest.mark.broker

COUNT = 250


def final_queues(topology: Topology) -> list[str]:
    """The queues in which a message stays: main and dead-letter queues."""
    return sorted({name for plan in topology.plans for name in (plan.queue, plan.parking.queue)})


async def prepare(url: str, topology: Topology) -> None:
    """Declare the old form and fill its queues."""
    connection = await RabbitMQ(url).connect()
    await declare(connection, topology)
    channel = await connection.open_channel()
    fates = []
    for queue in final_queues(topology):
        for number in range(COUNT):
            await channel.room()
            properties = Properties(delivery_mode=2, expiration="3600000")
            fates.append(channel.publish(Message("", queue, f"{number}".encode(), properties)))
    await asyncio.gather(*fates)
    await connection.close()


async def take_all(url: str, topology: Topology) -> dict[str, list[int]]:
    """The numbers in each queue, in order. A second declare checks the new form."""
    connection = await RabbitMQ(url).connect()
    await declare(connection, topology)
    channel = await connection.open_channel()
    found: dict[str, list[int]] = {}
    for queue in final_queues(topology):
        found[queue] = []
        while delivery := await channel.get(queue):
            found[queue].append(int(delivery.body))
            channel.ack(delivery.tag)
    await connection.close()
    return found


def command(rabbitmq: SharedNode, url: str, *more: str) -> Sequence[str]:
    """The options of the command for this test's virtual host."""
    return ["--broker", url, "--management", rabbitmq.management_url, *more]


@pytest.mark.waits(17)
async def test_event_bus_is_migrated_to_hardened_form_with_messages(
    rabbitmq: SharedNode, amqp_url: str
) -> None:
    """They keep their order."""
    faithful, hardened = DESIGNS["event-bus"].build(), DESIGNS["event-bus"].build(hardened=True)
    await prepare(amqp_url, faithful)
    connection = await RabbitMQ(amqp_url).connect()
    vhost = amqp_url.rpartition("/")[2]
    async with Management(ManagementAddress.derive(None, rabbitmq.management_url)) as told:
        planned = migration(hardened, await told.live_topology(vhost))
        # Four ticks of the node, which are shorter than those of production.
        await migrate(connection, planned, management=told, vhost=vhost, watch_s=2.0)
    await connection.close()
    found = await take_all(amqp_url, hardened)
    assert sorted(found) == final_queues(hardened)
    assert all(numbers == list(range(COUNT)) for numbers in found.values())


async def test_migrate_refuses_queue_with_held_back_messages(
    rabbitmq: SharedNode, vhost: str, amqp_url: str
) -> None:
    """No message is ready in the retry queue, and its messages cannot be routed."""
    design = DESIGNS["raffle"]
    connection = await RabbitMQ(amqp_url).connect()
    await declare(connection, design.build({"retry_ttl_ms": "100"}, hardened=True))
    channel = await connection.open_channel()
    await channel.delete_queue("raffle_queue")
    for number in range(20):
        await channel.publish(Message("", "raffle_retry_10s", b"%d" % number))
    async with Management(ManagementAddress.derive(None, rabbitmq.management_url)) as told:
        while (await told.queue(vhost, "raffle_retry_10s")).counts.held_back != 20:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        longer = design.build({"retry_ttl_ms": "200"}, hardened=True)
        planned = migration(longer, await told.live_topology(vhost))
        with pytest.raises(UnsafeOperation, match="20 messages of 'raffle_retry_10s'"):
            await migrate(
                connection, planned, management=told, vhost=vhost, watch_s=2.0, patience_s=4.0
            )
        assert (await told.queue(vhost, "raffle_retry_10s")).counts.held_back == 20
    await connection.close()


_SHOP = """
from hopback import App
from hopback.designs import DESIGNS

app = App("shop", topology=DESIGNS["ratatoskr"].build(hardened=True))
"""


@pytest.mark.waits(44)
def test_application_replaces_faithful_design_with_its_messages(
    rabbitmq: SharedNode, amqp_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command is run as by an operator."""
    (tmp_path / "migrated_shop.py").write_text(_SHOP)
    monkeypatch.chdir(tmp_path)
    name = "migrated_shop:app"
    design = DESIGNS["ratatoskr"]
    faithful, hardened = design.build(), design.build(hardened=True)
    asyncio.run(prepare(amqp_url, faithful))
    shown = CliRunner().invoke(migrate_command, [name, *command(rabbitmq, amqp_url, "--dry-run")])
    assert shown.exit_code == 0, shown.output
    assert "is replaced" in shown.output
    done = CliRunner().invoke(
        migrate_command, [name, *command(rabbitmq, amqp_url, "--yes", "-o", "json")]
    )
    assert done.exit_code == 0, done.output
    found = asyncio.run(take_all(amqp_url, hardened))
    assert sorted(found) == final_queues(hardened)
    assert all(numbers == list(range(COUNT)) for numbers in found.values())
    again = CliRunner().invoke(
        migrate_command, [name, *command(rabbitmq, amqp_url, "--yes", "-o", "json")]
    )
    assert json.loads(again.stdout)["plan"]["replacements"] == []


def test_migrate_without_management_api_is_refused(amqp_url: str) -> None:
    """Unknown bindings would be lost."""
    refused = CliRunner().invoke(migrate_command, ["raffle", "--broker", amqp_url, "--amqp-only"])
    assert isinstance(refused.exception, CommandFailed)
    assert "management" in str(refused.exception)
