"""Rules about arguments: what a broker refuses, and what it accepts and ignores."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from hopback.topology.capabilities import ARGUMENTS_OF, QUEUE_ARGUMENTS
from hopback.topology.hazards.phrases import exchange_place, named, queue_place
from hopback.topology.hazards.rule import Rule, Sighting, Verdict, errors, warnings
from hopback.topology.model import QueueType
from hopback.topology.wording import did_you_mean, shown

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hopback.topology.hazards.scene import Scene
    from hopback.topology.model import Queue

__all__ = ["RULES"]

_Verdicts: TypeAlias = "tuple[Verdict, ...]"

# Arguments that older brokers do not know yet, and so ignore.
_KNOWN_SINCE = {
    "x-consumer-disconnected-timeout": "4.3",
    "x-consumer-timeout": "3.12",
    "x-delayed-retry-max": "4.3",
    "x-delayed-retry-min": "4.3",
    "x-delayed-retry-type": "4.3",
}
# Known to some brokers, though not to the table of those that change what a queue does.
_HARMLESS = frozenset({"x-queue-master-locator"})
_EXCHANGE_ARGUMENTS = ("alternate-exchange", "x-delayed-type")


def _ignored(scene: Scene) -> Iterator[Sighting]:
    for queue in scene.declared.queues:
        for name in queue.arguments:
            if name not in QUEUE_ARGUMENTS and name not in _HARMLESS:
                hint = did_you_mean(name, QUEUE_ARGUMENTS)
                yield _without_effect(queue_place(queue.name), name, hint, warnings())
            elif name in _KNOWN_SINCE and name in ARGUMENTS_OF[queue.type]:
                older = warnings(before=_KNOWN_SINCE[name])
                yield _without_effect(queue_place(queue.name), name, "", older)
    for exchange in scene.declared.exchanges:
        for name in exchange.arguments:
            hint = did_you_mean(name, _EXCHANGE_ARGUMENTS)
            # Plugins bring arguments of their own: only a likely slip is worth a word.
            if name not in _EXCHANGE_ARGUMENTS and hint:
                yield _without_effect(exchange_place(exchange.name), name, hint, warnings())


def _without_effect(place: str, name: str, hint: str, verdicts: _Verdicts) -> Sighting:
    return Sighting(
        place,
        f"The argument {named(name)} is accepted and has no effect{hint}: what it should do does"
        " not happen, and nobody is told.",
        "Correct or remove it, or use a broker that knows it.",
        verdicts,
    )


def _refused(scene: Scene) -> Iterator[Sighting]:
    for queue in scene.declared.queues:
        for problem, verdicts in _problems(queue):
            yield Sighting(
                queue_place(queue.name),
                f"{problem}. The broker refuses the declaration and closes the channel, so the"
                " queue does not come to be.",
                "Correct or remove it.",
                verdicts,
            )


def _problems(queue: Queue) -> Iterator[tuple[str, _Verdicts]]:
    for name, value in queue.arguments.items():
        if name not in QUEUE_ARGUMENTS:
            continue
        if name not in ARGUMENTS_OF[queue.type]:
            yield f"A {queue.type} queue has no argument {named(name)}", errors()
        elif not QUEUE_ARGUMENTS[name].allows(value):
            expected = QUEUE_ARGUMENTS[name]
            yield f"{named(name)} is {shown(value)}, expected {expected}", errors()
    keyed = "x-dead-letter-routing-key" in queue.arguments
    if keyed and "x-dead-letter-exchange" not in queue.arguments:
        yield "`x-dead-letter-routing-key` stands without `x-dead-letter-exchange`", errors()
    yield from _by_version(queue)
    yield from _by_nature(queue)


def _by_version(queue: Queue) -> Iterator[tuple[str, _Verdicts]]:
    """What only some brokers refuse."""
    classic = queue.type is QueueType.CLASSIC
    if classic and "x-queue-leader-locator" in queue.arguments:
        problem = "A classic queue has no argument `x-queue-leader-locator` on this broker"
        yield problem, errors(before="3.11")
    if classic and "x-consumer-timeout" in queue.arguments:
        problem = "A classic queue has no argument `x-consumer-timeout` on this broker"
        yield problem, errors(since="4.3")
    if classic and queue.arguments.get("x-queue-version") == 1:
        yield "`x-queue-version: 1` no longer exists on this broker", errors(since="4.3")
    if classic and not queue.durable and not queue.exclusive:
        problem = "A queue that is neither durable nor exclusive is no longer allowed by default"
        yield problem, warnings(since="4.3")


def _by_nature(queue: Queue) -> Iterator[tuple[str, _Verdicts]]:
    if queue.type is QueueType.CLASSIC:
        return
    for wrong, name in (
        (not queue.durable, "not durable"),
        (queue.exclusive, "exclusive"),
        (queue.auto_delete, "auto-delete"),
    ):
        if wrong:
            yield f"A {queue.type} queue cannot be {name}", errors()


def _overflow(scene: Scene) -> Iterator[Sighting]:
    for queue in scene.queues.values():
        asked = queue.arguments.get("x-overflow") == "reject-publish-dlx"
        if asked and queue.type is QueueType.QUORUM:
            yield Sighting(
                queue_place(queue.name),
                "A quorum queue accepts `x-overflow: reject-publish-dlx` and does not support it:"
                " it removes its oldest messages instead of refusing new ones.",
                "Use `reject-publish`.",
            )


def _alternate(scene: Scene) -> Iterator[Sighting]:
    for exchange in scene.topology.exchanges:
        alternate = exchange.arguments.get("alternate-exchange")
        if isinstance(alternate, str) and alternate not in scene.exchanges:
            yield Sighting(
                exchange_place(exchange.name),
                f"Its alternate exchange {named(alternate)} does not exist: what no binding takes"
                " is returned to a publisher that asks, and dropped otherwise.",
                "Declare the alternate exchange, or correct the name"
                f"{did_you_mean(alternate, scene.exchanges)}.",
            )


RULES = (
    Rule("argument-ignored", warnings(), _ignored),
    Rule("argument-refused", errors(), _refused),
    Rule("overflow-unsupported", warnings(), _overflow),
    Rule("alternate-exchange-missing", warnings(), _alternate),
)
"""What can be wrong with what is declared."""
