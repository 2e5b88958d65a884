"""The page docs/reference/peers.md, from the results of the runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.peers.known import REASONS
from tests.peers.suites import SUITES, WITHOUT_TESTS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.peers.suites import Suite

__all__ = ["write_page"]

_PAGE = Path(__file__).parents[2] / "docs" / "reference" / "peers.md"
_TEXT = """\
# Other projects' own tests on `hopback broker`

Written by `make test-peers`; do not edit. Clients and frameworks bring tests that talk to a RabbitMQ.
Those that come inside source packages of the registry are run here, unchanged, against RabbitMQ and
against [`hopback broker`](broker.md) in its profiles, each on a fresh broker in a network namespace of
its own.

A cell says how many tests passed, of those that ran; in brackets how many were skipped by the suite
itself. A suite that broke off ran fewer tests than elsewhere: one of its tests ended the whole run, or its
time was over. Suites may have been run at different times. Only what ran on RabbitMQ is compared, and only
with the RabbitMQ in the first column: what differs between versions shows as a difference.

{table}

## What passes on RabbitMQ and not on `hopback broker`

{differing}

## What fails on RabbitMQ itself

{both}

## What is left out, and why

{left_out}

In aio-pika and aiormq the watch for leaks of the client's own memory is switched off: it is not about
brokers. Both find their broker through Docker; here they are told the address of the one that runs already.
"""


def write_page(results: Mapping[str, Any]) -> list[str]:
    """Write it; what passes on RabbitMQ and not on ours without a known reason."""
    reference = next((name for name in results if name.startswith("rabbitmq")), None)
    differing, unexplained, both = [], [], []
    for suite in SUITES:
        theirs = _outcomes(results, reference, suite)
        for broker in (name for name in results if name.startswith("hopback")):
            for test, outcome in sorted(_outcomes(results, broker, suite).items()):
                if outcome == "failed" and theirs.get(test) == "passed":
                    reason = REASONS.get(test.rpartition("::")[2].partition("[")[0])
                    row = f"{suite.name}, `{test}`, {_title(broker)}"
                    differing.append(f"- {row}: {reason or 'not explained yet'}.")
                    if reason is None:
                        unexplained.append(row)
        same = [test for test, outcome in sorted(theirs.items()) if outcome == "failed"]
        both += [f"- {suite.name}: `{test}`" for test in same]
    text = _TEXT.format(
        table=_table(results),
        differing="\n".join(differing) or "Nothing.",
        both="\n".join(both) or "Nothing.",
        left_out=_left_out(),
    )
    _PAGE.write_text(text)
    return unexplained


def _outcomes(results: Mapping[str, Any], broker: str | None, suite: Suite) -> dict[str, str]:
    found = results.get(broker or "", {}).get("suites", {}).get(suite.name, {})
    return dict(found.get("outcomes", {}))


def _title(broker: str, version: str = "") -> str:
    kind, _, which = broker.partition("-")
    return f"hopback broker {which}" if kind == "hopback" else f"RabbitMQ {version or which}"


def _table(results: Mapping[str, Any]) -> str:
    names = [_title(broker, found.get("version", "")) for broker, found in results.items()]
    lines = [f"| | {' | '.join(names)} |", "|---" * (len(names) + 1) + "|"]
    for suite in SUITES:
        most = max(len(_outcomes(results, broker, suite)) for broker in results)
        cells = [_cell(found["suites"].get(suite.name), most) for found in results.values()]
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


def _left_out() -> str:
    lines = [
        f"- {suite.name}: tests with `{part}` in their names: {reason}."
        for suite in SUITES
        for part, reason in suite.left_out.items()
    ]
    return "\n".join((*lines, *(f"- {name}: {why}." for name, why in WITHOUT_TESTS.items())))
