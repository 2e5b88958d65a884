"""The page docs/reference/peers.md, from the results of the runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.peers.known import REASONS
from tests.peers.suites import BY_HAND, SUITES, TEST_SECONDS, WITHOUT_TESTS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tests.peers.suites import Suite

__all__ = ["write_page"]

_PAGE = Path(__file__).parents[2] / "docs" / "reference" / "peers.md"
_TEXT = """\
# Other projects' own tests on `hopback broker`

Written by `make test-peers`; do not edit. Clients and frameworks bring tests that talk to a RabbitMQ.
Those that come inside source packages of the registry are run here, against RabbitMQ and against
[`hopback broker`](broker.md) in its profiles, each on a fresh broker in a network namespace of its own.

Compared are {references}: the rows
below say what passes on the one and not on the other.

A cell says how many tests passed, of those that ran; in brackets how many were skipped by the suite
itself. A suite that broke off ran fewer tests than elsewhere: one of its tests ended the whole run, or its
time was over. What a broken run did not reach on RabbitMQ is not compared.

{table}

Not run: {missing}.

When each was begun (UTC), and how long it took; a cell is its last run. What else ran on the machine then
may have made tests fail that depend on time, on either side.

{times}

## What passes on RabbitMQ and not on `hopback broker`

{differing}

## What fails on `hopback broker` and did not run on RabbitMQ

{alone}

## What fails on RabbitMQ itself

{both}

## Tried by hand

{by_hand}

## What is left out, and why

{left_out}

## What is changed for the suites

Their files are as they came. A plugin of ours for pytest, the same on every broker,

- leaves out the tests above, and takes down what becomes of the others;
- switches off the fixture `memory_tracer` of aio-pika and aiormq, which watches the client's own memory:
  it is not about brokers, and trips under load;
- supplies to aiormq the fixtures `rabbitmq_container` and `amqp_direct_url`, which its source package does
  not have;
- ends a test after {seconds} seconds.

aio-pika asks Docker for a broker. There is none: a stand-in for Docker's API tells it the address of the
broker that runs already. Celery is told to use the broker for results too, in place of Redis, and AMQPStorm
gets the address, user and password in its environment.
"""


def write_page(results: Mapping[str, Any]) -> list[str]:
    """Write it; what passes on RabbitMQ and not on ours without a known reason."""
    unexplained: list[str] = []
    differing: list[str] = []
    alone: list[str] = []
    both: list[str] = []
    for suite in SUITES:
        for broker in (name for name in results if name.startswith("hopback")):
            theirs = _outcomes(results, _reference(results, broker), suite)
            for test, outcome in sorted(_outcomes(results, broker, suite).items()):
                if outcome != "failed" or theirs.get(test, "passed") != "passed":
                    continue
                reason = REASONS.get(_function(test)) or _elsewhere(results, suite, test)
                row = f"{suite.name}, `{test}`, {_title(broker)}"
                line = f"- {row}: {reason or 'cause not known yet'}."
                (differing if test in theirs else alone).append(line)
                if reason is None and test in theirs:
                    unexplained.append(row)
        for broker in (name for name in results if name.startswith("rabbitmq")):
            found = sorted(_outcomes(results, broker, suite).items())
            title = _title(broker, results[broker]["version"])
            failed = [test for test, outcome in found if outcome == "failed"]
            both += [f"- {suite.name}, `{test}`, {title}" for test in failed]
    text = _TEXT.format(
        references=_references(results),
        table=_table(results, _cell),
        missing=_missing(results) or "nothing",
        times=_table(results, _time),
        seconds=TEST_SECONDS,
        alone="\n".join(alone) or "Nothing.",
        differing="\n".join(differing) or "Nothing.",
        both="\n".join(both) or "Nothing.",
        left_out=_left_out(),
        by_hand="\n".join(f"- {name}: {found}." for name, found in BY_HAND.items()),
    )
    _PAGE.write_text(text)
    return unexplained


def _reference(results: Mapping[str, Any], broker: str) -> str | None:
    """The RabbitMQ of the same version, or, where it was not run, the installed one."""
    series = broker.partition("-")[2]
    real = [name for name in results if name.startswith("rabbitmq")]
    same = (name for name in real if results[name]["version"].startswith(f"{series}."))
    return next(same, real[0] if real else None)


def _references(results: Mapping[str, Any]) -> str:
    """Which is compared with which."""
    pairs = []
    for broker in (name for name in results if name.startswith("hopback")):
        reference = _reference(results, broker)
        if reference is not None:
            pairs.append(
                f"{_title(broker)} with {_title(reference, results[reference]['version'])}"
            )
    return ", ".join(pairs) or "nothing with nothing"


def _function(test: str) -> str:
    return test.rpartition("::")[2].partition("[")[0]


def _elsewhere(results: Mapping[str, Any], suite: Suite, test: str) -> str | None:
    """Where the same test, perhaps with other parameters, failed on a RabbitMQ."""
    failed = [
        _title(broker, results[broker]["version"])
        for broker in results
        if broker.startswith("rabbitmq")
        and any(
            outcome == "failed" and _function(other) == _function(test)
            for other, outcome in _outcomes(results, broker, suite).items()
        )
    ]
    return f"fails at times, on {' and on '.join(failed)} too" if failed else None


def _outcomes(results: Mapping[str, Any], broker: str | None, suite: Suite) -> dict[str, str]:
    found = results.get(broker or "", {}).get("suites", {}).get(suite.name, {})
    return dict(found.get("outcomes", {}))


def _title(broker: str, version: str = "") -> str:
    kind, _, which = broker.partition("-")
    return f"hopback broker {which}" if kind == "hopback" else f"RabbitMQ {version or which}"


def _missing(results: Mapping[str, Any]) -> str:
    return ", ".join(
        f"{suite.name} on {_title(broker, found.get('version', ''))}"
        for suite in SUITES
        for broker, found in results.items()
        if not _outcomes(results, broker, suite)
    )


def _table(results: Mapping[str, Any], cell: Callable[[Mapping[str, Any] | None, int], str]) -> str:
    names = [_title(broker, found.get("version", "")) for broker, found in results.items()]
    lines = [f"| | {' | '.join(names)} |", "|---" * (len(names) + 1) + "|"]
    for suite in SUITES:
        most = max(len(_outcomes(results, broker, suite)) for broker in results)
        cells = [cell(found["suites"].get(suite.name), most) for found in results.values()]
        paths = ", ".join(f"`{path}`" for path in suite.paths)
        title = suite.package.replace("==", " ")
        lines.append(f"| {title}, {paths} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(found: Mapping[str, Any] | None, most: int) -> str:
    if found is None or not found["outcomes"]:
        return "not run"
    outcomes = list(found["outcomes"].values())
    skipped = outcomes.count("skipped")
    text = f"{outcomes.count('passed')} of {len(outcomes) - skipped}"
    text += f" ({skipped})" if skipped else ""
    return text + (", broke off" if len(outcomes) < most else "")


def _time(found: Mapping[str, Any] | None, _most: int) -> str:
    if found is None or not found["outcomes"]:
        return "not run"
    return f"{found['begun']}, {found['seconds']} s"


def _left_out() -> str:
    lines = [
        f"- {suite.name}: tests with `{part}` in their names: {reason}."
        for suite in SUITES
        for part, reason in suite.left_out.items()
    ]
    return "\n".join((*lines, *(f"- {name}: {why}." for name, why in WITHOUT_TESTS.items())))
