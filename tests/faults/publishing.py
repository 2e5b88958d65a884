"""Messages whose handlers publish something that closes a channel, next to messages that publish
normally.

`python -m tests.faults publishing --brokers 3.10,4.0,4.3` runs all combinations. A bystander is a
message that publishes to an existing queue. It must run once, its output must arrive once, and it
must not be parked.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hopback import App, Context, RabbitMQ, RequestClient, Service
from hopback.broker.port import REPLY_TO, count_now
from hopback.broker.supervise import Backoff
from hopback.message import Message, Properties
from hopback.runtime import Environment
from hopback.topology.model import Binding, Exchange, Queue
from tests.faults.results import Result

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from hopback.broker.port import Broker, Connection
    from hopback.message import Delivery
    from tests.faults.site import Site
    from tests.harness.management import Management

__all__ = ["OFFENCES", "WITHDRAWALS", "Bystanders", "publishing", "run_beside", "user_with_rights"]

MAX_BODY = 65_536
"""The largest body that the broker accepts in a run, in bytes."""
_CONCURRENCY = 20
_ATTEMPTS_WAIT = "50ms"
_FORBIDDEN, _TOPIC, _USED = "forbidden", "events", "used"
_SPARE = [f"spare.{number}" for number in range(16)]
"""A RabbitMQ channel caches the permissions for 12 exchanges. These are more, so it has to check
its permissions again.
"""

_FORGED_COPY = Properties(headers={"CC": [f"{REPLY_TO}.AAAA.BBBB"]})

OFFENCES: dict[str, Callable[[int], Message]] = {
    "missing exchange": lambda number: Message("no.such.exchange", "k", b"%d" % number),
    "no right on the exchange": lambda number: Message(_FORBIDDEN, "k", b"%d" % number),
    "no right on the topic key": lambda number: Message(_TOPIC, f"secret.{number}", b"%d" % number),
    "body too large": lambda number: Message("", "out", bytes(MAX_BODY + 1 + number)),
    "copy to a forged reply address": lambda number: Message("", "k", b"%d" % number, _FORGED_COPY),
}
"""The publishes that close a channel. On 3.10 and 4.0, some of them close the connection."""

WITHDRAWALS = ("exchange deleted", "right revoked")
"""Changes after which publishes fail that were confirmed before."""

FORGED = "forged reply address"


@dataclass(frozen=True, slots=True)
class Bystanders:
    """The results for bystanders and for messages with an invalid publish."""

    offence: str
    bystanders: int
    offenders: int
    parked: int
    """How many bystanders are in the dead-letter queue."""
    again: int
    """How often bystanders ran again."""
    doubled: int
    """How many outputs of bystanders arrived more than once."""
    missing: int
    """How many bystanders have no output."""
    offenders_parked: int

    @property
    def harm_count(self) -> int:
        """How many bystanders were harmed."""
        return self.parked + self.again + self.doubled + self.missing

    def row(self, broker: str) -> tuple[str, str, str]:
        """Return the row of the page."""
        what = f"invalid publishes: {self.offence}, {broker}"
        much = (
            f"{self.bystanders:,} other messages, {self.offenders} invalid: {self.parked} parked,"
            f" {self.again} run again, {self.doubled} outputs twice, {self.missing} missing"
        )
        harmless = self.harm_count == 0 or (
            self.offence in WITHDRAWALS and not self.parked and not self.missing and not self.again
        )
        if not self.offenders_parked:
            return (what, much, "failed: no invalid publish was refused")
        return (what, much, "holds" if harmless else "failed: other messages were affected")


async def _prepare(connection: Connection) -> None:
    channel = await connection.open_channel()
    await channel.declare_queue(Queue("out"))
    for name, kind in ((_FORBIDDEN, "direct"), (_TOPIC, "topic"), (_USED, "direct")):
        await channel.declare_exchange(Exchange(name, kind))
        await channel.bind(Binding(name, "out", "ok.#" if kind == "topic" else "k"))
    for name in _SPARE:
        await channel.declare_exchange(Exchange(name, "direct"))
    await channel.close()


async def run_beside(
    broker: Broker,
    operator: Broker,
    *offences: str,
    messages: int = 400,
    share: float = 0.05,
    withdraw: Callable[[], Awaitable[None]] | None = None,
) -> Bystanders:
    """Handle messages and return the results of the bystanders. A share of the messages makes an
    invalid publish.

    The application uses `broker`, and `operator` has all permissions. With `withdraw`, the invalid
    publishes go to an exchange that can be used until `withdraw` is called halfway.
    """
    step = round(1 / share)
    offenders = set(range(step // 2, messages, step))
    runs: Counter[int] = Counter()
    withdrawn = asyncio.Event()
    app = App("publishing")
    offend = [OFFENCES[offence] for offence in offences if offence in OFFENCES]

    @app.handler("in", retry=[_ATTEMPTS_WAIT] * 2, concurrency=_CONCURRENCY)
    async def handle(number: int, context: Context) -> None:
        runs[number] += 1
        if number not in offenders:
            if number % 2:
                await context.publish(f"ok.{number % 5}", b"%d" % number, exchange=_TOPIC)
            else:
                await context.publish("out", b"%d" % number)
        elif offend:
            await context.send(offend[number // step % len(offend)](number))
        else:
            await context.publish("k", b"x", exchange=_USED)
            if sum(runs.values()) > messages // 2 and withdraw is not None:
                if not withdrawn.is_set():
                    withdrawn.set()
                    await withdraw()
                for spare in _SPARE:
                    await context.publish("k", b"x", exchange=spare, mandatory=False)
                await context.publish("k", b"x", exchange=_USED)

    environment = Environment(backoff=Backoff(first=0.05, most=0.2), reconnect=Backoff(first=0.05))
    connection = await operator.connect("operator")
    await _prepare(connection)
    service = Service(app, broker, environment=environment)
    running = asyncio.create_task(service.run())
    try:
        await asyncio.wait_for(service.ready.wait(), 60)
        channel = await connection.open_channel()
        for number in range(messages):
            await channel.room()
            channel.publish(Message("", "in", b"%d" % number))
        async with asyncio.timeout(240):
            while not await _is_calm(connection, service, runs, messages):
                pass
        outputs = Counter(await _drain(connection, "out"))
        parked = Counter(await _drain(connection, "in.dlq"))
    finally:
        service.stop()
        await running
        await connection.close()
    innocent = [number for number in range(messages) if number not in offenders]
    return Bystanders(
        ", ".join(offences),
        len(innocent),
        len(offenders),
        parked=sum(parked[number] for number in innocent),
        again=sum(max(0, runs[number] - 1) for number in innocent),
        doubled=sum(max(0, outputs[number] - 1) for number in innocent),
        missing=sum(not outputs[number] and not parked[number] for number in innocent),
        offenders_parked=sum(bool(parked[number]) for number in offenders),
    )


async def run_beside_forged(
    broker: Broker, *, requests: int = 200, share: float = 0.05
) -> Bystanders:
    """Reply to requests while a share of additional requests asks for replies to forged addresses."""
    app = App("answering")
    outputs: Counter[int] = Counter()
    handled: Counter[int] = Counter()

    @app.handler("ask", retry=[_ATTEMPTS_WAIT], concurrency=_CONCURRENCY, replies=True)
    async def answer(number: int, context: Context) -> int:
        handled[number] += 1
        if number >= 0:
            await context.publish("out", b"%d" % number)
        return number

    # Use the usual pauses between connections. They must not add up.
    environment = Environment(backoff=Backoff(first=0.05, most=0.2))
    connection = await broker.connect("operator")
    channel = await connection.open_channel()
    await channel.declare_queue(Queue("out"))
    service = Service(app, broker, environment=environment)
    running = asyncio.create_task(service.run())
    try:
        await asyncio.wait_for(service.ready.wait(), 60)
        forged = _forge_addresses(await _reply_address(connection))
        async with RequestClient(broker) as client:

            async def ask(number: int) -> None:
                outputs[await client.request("ask", number, timeout="60s")] += 1

            asking = [asyncio.create_task(ask(number)) for number in range(requests // 2)]
            offenders = round(requests * share)
            for number in range(offenders):
                properties = Properties(reply_to=forged[number % len(forged)])
                await channel.publish(Message("", "ask", b"%d" % (-1 - number), properties))
            asking += [
                asyncio.create_task(ask(number)) for number in range(requests // 2, requests)
            ]
            answered = await asyncio.gather(*asking, return_exceptions=True)
            async with asyncio.timeout(120):
                while not await _is_calm(connection, service, handled, requests):
                    pass
            doubled = client.late
        published = Counter(await _drain(connection, "out"))
        parked = await _drain(connection, "ask.dlq")
    finally:
        service.stop()
        await running
        await connection.close()
    return Bystanders(
        FORGED,
        requests,
        offenders,
        parked=sum(number >= 0 for number in parked),
        again=sum(max(0, handled[number] - 1) for number in range(requests)),
        doubled=doubled + sum(max(0, times - 1) for times in published.values()),
        missing=sum(one is not None for one in answered),
        offenders_parked=sum(number < 0 for number in parked),
    )


async def _reply_address(connection: Connection) -> str:
    """Return a reply address that the broker has generated for a channel."""
    channel = await connection.open_channel()
    await channel.consume(REPLY_TO, lambda _: None, no_ack=True)
    asked = (await channel.declare_queue(Queue("addresses", exclusive=True))).name
    await channel.publish(Message("", asked, b"", Properties(reply_to=REPLY_TO)))
    found = await channel.get(asked)
    return (found and found.properties.reply_to) or ""


def _forge_addresses(address: str) -> list[str]:
    """Return addresses that make RabbitMQ 3.10 close the connection.

    All but the first three look valid.
    """
    pid, _, key = address.removeprefix(f"{REPLY_TO}.").partition(".")
    raw = base64.b64decode(pid)
    far = base64.b64encode(raw[:-12] + b"\xff\xff\xff\xff" + raw[-8:]).decode()
    others = [
        base64.b64encode(raw.replace(b"reply@", b"yl%03d@" % number)).decode()
        for number in range(50)
    ]
    junk = base64.b64encode(b"junkjunk").decode()
    cut = base64.b64encode(raw[:-1]).decode()
    return [f"{REPLY_TO}.{one}.{key}" for one in ("a", junk, cut, far, *others)]


async def _is_calm(
    connection: Connection, service: Service, runs: Counter[int], messages: int
) -> bool:
    """Return True if all messages have run and none is being handled or waits for a retry."""
    before = sum(runs.values())
    await asyncio.sleep(0.3)
    if len(runs) < messages or sum(runs.values()) != before:
        return False
    names = [queue.name for queue in service.topology.queues]
    held = [name for name in names if not name.endswith(".dlq")]
    for name in held:
        state = await count_now(connection, name)
        if state is not None and state.messages:
            return False
    return not any(one.in_flight or one.held_count for one in service.consumers)


async def _drain(connection: Connection, queue: str) -> list[int]:
    """Return the numbers of all messages in a queue and leave them unacked."""
    channel = await connection.open_channel()
    found: list[int] = []
    while (delivery := await channel.get(queue)) is not None:
        found.append(_number(delivery))
    await channel.close()
    return found


def _number(delivery: Delivery) -> int:
    try:
        return int(json.loads(delivery.body))
    except ValueError:
        return -1_000_000


def user_with_rights(management: Management, url: str, vhost: str, name: str) -> str:
    """Create a user and return its URL. The user may publish everywhere except to certain exchanges
    and topic keys.
    """
    management.call("PUT", f"/users/{name}", {"password": "secret", "tags": ""})
    rights = {"configure": ".*", "write": f"^(?!{_FORBIDDEN}$).*", "read": ".*"}
    management.call("PUT", f"/permissions/{vhost}/{name}", rights)
    # RabbitMQ 4.3 only accepts topic permissions for exchanges that exist.
    management.call("PUT", f"/exchanges/{vhost}/{_TOPIC}", {"type": "topic", "durable": True})
    topic = {"exchange": _TOPIC, "write": "^ok[.]", "read": ".*"}
    management.call("PUT", f"/topic-permissions/{vhost}/{name}", topic)
    return url.replace("guest:guest", f"{name}:secret")


async def publishing(site: Site) -> Result:
    """Run all invalid publishes and all changes on one broker."""
    found = Result("")
    conf = f"max_message_size = {MAX_BODY}\n"
    async with site.turns, site.node(conf) as node:
        for number, offence in enumerate((*OFFENCES, *WITHDRAWALS)):
            vhost, user = f"v{number}", f"u{number}"
            await asyncio.to_thread(node.management.create_vhost, vhost)
            url = await asyncio.to_thread(
                user_with_rights, node.management, node.url + vhost, vhost, user
            )
            operator = RabbitMQ(node.url + vhost)
            one = await run_beside(
                RabbitMQ(url),
                operator,
                offence,
                messages=site.messages(2_000),
                withdraw=_withdrawal(offence, operator, node.management, vhost, user),
            )
            found.checks.append(one.row(site.broker))
        forged = await run_beside_forged(RabbitMQ(node.url), requests=site.messages(1_000))
        found.checks.append(forged.row(site.broker))
    return found


def _withdrawal(
    offence: str, operator: Broker, management: Management, vhost: str, user: str
) -> Callable[[], Awaitable[None]] | None:
    async def delete() -> None:
        connection = await operator.connect("operator")
        await (await connection.open_channel()).delete_exchange(_USED)
        await connection.close()

    async def revoke() -> None:
        rights: dict[str, Any] = {"configure": ".*", "write": f"^(?!{_USED}$).*", "read": ".*"}
        path = f"/permissions/{vhost}/{user}"
        await asyncio.to_thread(management.call, "PUT", path, rights)

    return {"exchange deleted": delete, "right revoked": revoke}.get(offence)
