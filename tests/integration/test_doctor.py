"""The doctor on a real RabbitMQ."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from hopback.broker.apply import apply, live_plan
from hopback.broker.doctor import Examination, examine
from hopback.broker.management import Management, ManagementAddress
from hopback.broker.rabbitmq import RabbitMQ
from hopback.cli.live_broker import doctor as doctor_command
from hopback.designs import DESIGNS
from hopback.message import Message
from hopback.topology.check import check
from hopback.topology.model import Queue, QueueType

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from hopback.broker.port import Connection
    from hopback.fields import FieldValue
    from tests.harness.rabbitmq import RabbitNode
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


async def look(connection: Connection, management: Management, vhost: str) -> Examination:
    """Examine this test's virtual host."""
    return await examine("here", vhost, connection.version, management)


async def test_live_topology_has_same_findings_as_declared_one(
    connection: Connection, management: Management, vhost: str
) -> None:
    desired = DESIGNS["ratatoskr"].build({}, hardened=False)
    planned = await live_plan(desired, connection, management, vhost)
    await apply(planned, connection, management, vhost=vhost)
    found = await examine("here", vhost, connection.version, management, desired=desired)
    assert {(f.rule, f.place) for f in found.findings} == {
        (f.rule, f.place) for f in check(desired, connection.version)
    }
    assert found.queues == 3
    assert found.overview is not None


async def test_doctor_names_held_back_dead_letters(
    connection: Connection, management: Management, vhost: str
) -> None:
    """At-least-once dead-lettering to a missing queue shows in no queue."""
    nowhere = {
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": "missing",
        "x-dead-letter-strategy": "at-least-once",
        "x-overflow": "reject-publish",
    }
    channel = await connection.open_channel()
    await channel.declare_queue(Queue("jammed", QueueType.QUORUM, arguments=nowhere))
    await channel.publish(Message("", "jammed", b"stuck"))
    delivery = await channel.get("jammed")
    assert delivery is not None
    channel.nack(delivery.tag, requeue=False)
    await channel.close()
    for _ in range(150):
        found = await look(connection, management, vhost)
        if found.held_back:
            break
        await asyncio.sleep(0.1)
    (held,) = found.held_back
    assert (held.queue, held.messages) == ("jammed", 1)
    assert not found.healthy
    (advice,) = [one.text for one in found.notices if "confirm_timeout, 10000" in one.text]
    assert "1 queues dead-letter at least once (jammed)" in advice


async def test_doctor_reports_alarm(start_rabbitmq: Callable[..., RabbitNode]) -> None:
    node = start_rabbitmq()
    connection = await RabbitMQ(node.url).connect("test")
    async with Management(ManagementAddress.derive(None, node.management_url)) as management:
        assert (await examine("here", "/", connection.version, management)).alarms == ()
        node.ctl("set_vm_memory_high_watermark", "absolute", "1MB")
        for _ in range(100):
            found = await examine("here", "/", connection.version, management)
            if found.alarms:
                break
            await asyncio.sleep(0.1)
    await connection.close()
    assert [alarm.resource for alarm in found.alarms] == ["memory"]
    assert not found.healthy


async def test_doctor_without_management_api_reports_version_only(connection: Connection) -> None:
    found = await examine("here", "/", connection.version, None)
    assert any("not asked" in notice.text for notice in found.notices)
    assert found.queues is None


async def test_doctor_command_prints_json_and_exits_with_0(
    amqp_url: str, rabbitmq: SharedNode
) -> None:
    arguments = ["--broker", amqp_url, "--management", rabbitmq.management_url, "-o", "json"]
    result = await asyncio.to_thread(
        lambda: CliRunner().invoke(doctor_command, arguments, standalone_mode=False)
    )
    assert result.exception is None
    data = json.loads(result.stdout)
    assert (result.return_value, data["healthy"], data["alarms"]) == (0, True, [])
    assert "guest:guest" not in result.output


async def test_doctor_findings_without_terminal_are_wrapped(
    amqp_url: str, rabbitmq: SharedNode, connection: Connection
) -> None:
    channel = await connection.open_channel()
    arguments: dict[str, FieldValue] = {"x-dead-letter-exchange": "nowhere", "x-max-length": 5}
    await channel.declare_queue(Queue("doctor.unread", QueueType.CLASSIC, arguments=arguments))
    options = ["--broker", amqp_url, "--management", rabbitmq.management_url]
    result = await asyncio.to_thread(
        lambda: CliRunner().invoke(doctor_command, options, standalone_mode=False)
    )
    assert result.exception is None
    assert "doctor.unread" in result.stdout
    findings, _, _ = result.stdout.partition("\n- ")
    assert max(map(len, findings.splitlines()[1:])) <= 96
