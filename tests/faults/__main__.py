"""The long run: `python -m tests.faults [PART …]`, which is `make test-faults`.

Each part keeps what it counted in `.work/faults/`; the page is written from all that is there.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import sys
import time
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.faults import parts
from tests.faults.fuzz import fuzz_everything
from tests.faults.http import fuzz_http
from tests.faults.overload import overload
from tests.faults.soak import soak, verdict_on
from tests.faults.tally import Part, Tally, page
from tests.harness.installation import HOST
from tests.harness.rabbitmq import RabbitNode
from tests.harness.versions import installations

if TYPE_CHECKING:
    from tests.harness.installation import Installation

_ROOT = Path(__file__).resolve().parents[2]
_KEPT = _ROOT / ".work" / "faults"
_PAGE = _ROOT / "docs" / "explanation" / "proof.md"
_PARTS = ("simulation", "matrix", "soak", "overload", "storms", "cluster", "fuzz", "http")
_STORMS = ("ratatoskr-faithful", "ratatoskr-hardened", "recommended")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("parts", nargs="*", choices=[*_PARTS, []], help="all of them by default")
    parser.add_argument("--minutes", type=float, default=60.0, help="no part begins later")
    parser.add_argument("--seeds", type=int, default=5000)
    parser.add_argument("--messages", type=int, default=300_000, help="of the fault matrix")
    parser.add_argument("--each", type=int, default=10_000, help="messages of a round")
    parser.add_argument("--soak", type=int, default=1_000_000)
    parser.add_argument("--kills", type=int, default=8, help="of the broker, for each storm")
    parser.add_argument("--cluster", type=int, default=30_000)
    parser.add_argument("--cluster-faults", type=int, default=20)
    parser.add_argument("--fuzz", type=int, default=20_000, help="inputs for each reader")
    parser.add_argument("--http", type=int, default=500, help="requests to each operation")
    parser.add_argument("--broker", choices=["host", *installations()], default="host")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kept", type=Path, default=_KEPT, help="where parts keep their counts")
    parser.add_argument("--page", type=Path, default=_PAGE, help="the page that is written")
    return parser.parse_args()


def main() -> int:
    """Run the parts and write the page; 1 if a promise was broken."""
    options = _options()
    options.until = time.monotonic() + options.minutes * 60
    if not options.parts:
        shutil.rmtree(options.kept, ignore_errors=True)  # a whole run owes nothing to older ones
    for name in options.parts or _PARTS:
        if time.monotonic() < options.until:
            tally = asyncio.run(_part(name, options))
            tally.save(options.kept / f"{name}-{options.broker}.json")
    together = _kept(options.kept)
    words = options.page.read_text(encoding="utf-8") if options.page.exists() else ""
    options.page.write_text(page(words, together, "python -m tests.faults"), encoding="utf-8")
    return int(together.failed)


async def _part(name: str, options: argparse.Namespace) -> Tally:
    installation = {"host": HOST, **installations()}[options.broker]
    until = options.until
    match name:
        case "simulation":
            # In a thread: it brings event loops of its own.
            return Tally([await asyncio.to_thread(parts.simulation, 1_000, options.seeds, until)])
        case "matrix":
            size = (options.messages, options.each, until, options.seed)
            return Tally([await parts.matrix(installation, _version(installation), *size)])
        case "soak":
            return await _soaked(installation, _version(installation), options)
        case "storms":
            where = (until, installation, _version(installation))
            storms = [await parts.storm_of(name, options.kills, *where) for name in _STORMS]
            return Tally(storms)
        case "cluster":
            wanted = options.cluster, options.cluster_faults
            return Tally([await parts.cluster(*wanted, until, _version(HOST))])
        case "overload":
            return Tally(checks=await overload(installation))
        case "fuzz":
            return Tally(checks=fuzz_everything(options.fuzz, options.seed))
        case _:
            return Tally(checks=[_asked(options)])


def _asked(options: argparse.Namespace) -> tuple[str, str, str]:
    asked = fuzz_http(options.http, options.seed, options.until)
    for finding in asked.findings:  # the page has room for one
        sys.stdout.write(f"http: {finding}\n")
    return asked.row()


async def _soaked(installation: Installation, version: str, options: argparse.Namespace) -> Tally:
    part, used = await soak(options.soak, 50_000, options.until, installation, version)
    first, last = used[len(used) // 4], used[-1]
    measured = (
        f"{first.rss / 2**20:.0f} → {last.rss / 2**20:.0f} MB, {last.fds} descriptors,"
        f" {last.tasks} tasks, {last.channels} channels, {len(used)} samples"
    )
    row = (f"soak of {part.confirmed:,} messages", measured, verdict_on(used))
    return Tally([part], [row])


@cache
def _version(installation: Installation) -> str:
    with RabbitNode(installation=installation) as node:
        return f"RabbitMQ {node.management.call('GET', '/overview')['rabbitmq_version']}"


def _kept(folder: Path) -> Tally:
    """Everything that parts have kept, in the order in which they are listed."""
    found = Tally()
    for path in sorted(folder.glob("*.json"), key=lambda one: _PARTS.index(one.stem.split("-")[0])):
        kept: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        found.parts += [Part(**part) for part in kept["parts"]]
        found.checks += [(what, much, verdict) for what, much, verdict in kept["checks"]]
    return found


if __name__ == "__main__":
    sys.exit(main())
