"""The long run. `python -m tests.faults [PART …] --brokers 3.10,4.0,4.3` is the same as `make
test-faults`.

Each result is stored in `.work/faults/` when its block ends, and the page is written from all
stored results. If a run is interrupted, the next one continues with the missing blocks. `--anew`
deletes the stored results.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tests.faults import parts
from tests.faults.blocks import ON_BROKERS, Block, blocks_of, run_blocks
from tests.faults.fuzz import fuzz_everything
from tests.faults.http import fuzz_http
from tests.faults.overload import overload
from tests.faults.results import Result, Results
from tests.faults.site import BROKERS, installation_of
from tests.faults.tally import page
from tests.harness.signals import set_signals

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_ROOT = Path(__file__).resolve().parents[2]
_KEPT = _ROOT / ".work" / "faults"
_PAGE = _ROOT / "docs" / "explanation" / "proof.md"
_ALONE = ("simulation", "overload", "fuzz", "http")
"""The parts that run only once, one after another."""
_PARTS = (*ON_BROKERS, *_ALONE)


def _brokers(text: str) -> list[str]:
    found = text.split(",")
    unknown = sorted(set(found) - set(BROKERS))
    if unknown:
        raise argparse.ArgumentTypeError(f"expected some of {', '.join(BROKERS)}, found {unknown}")
    return found


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("parts", nargs="*", choices=[*_PARTS, []], help="all of them by default")
    parser.add_argument("--brokers", type=_brokers, default=["3.10"], help="3.10,4.0,4.3")
    parser.add_argument("--at-once", type=int, default=2, help="blocks that work at a time")
    parser.add_argument("--scale", type=float, default=1.0, help="of the messages of a block")
    parser.add_argument("--most", type=int, default=100, help="blocks of a part on each broker")
    parser.add_argument("--minutes", type=float, default=600.0, help="maximum duration")
    parser.add_argument("--anew", action="store_true", help="delete the results of earlier runs")
    parser.add_argument("--seeds", type=int, default=2000)
    parser.add_argument("--fuzz", type=int, default=20_000, help="inputs for each reader")
    parser.add_argument("--http", type=int, default=500, help="requests to each operation")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kept", type=Path, default=_KEPT, help="where blocks keep their counts")
    parser.add_argument("--page", type=Path, default=_PAGE, help="the page that is written")
    return parser.parse_args()


def main() -> int:
    """Run the missing blocks and write the page.

    Returns 1 if a promise was broken, and 2 if blocks are missing.
    """
    set_signals()
    logging.disable(logging.WARNING)  # connections are lost constantly
    # SIGTERM ends the run in order, like Ctrl-C
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    options = _options()
    path = options.kept / "results.ndjson"
    if options.anew:
        path.unlink(missing_ok=True)
    results = Results(path)

    def keep(result: Result) -> None:
        results.append(result)
        _tell(result)
        _write(results, options)

    asked = options.parts or _PARTS
    unfinished = False
    try:
        asyncio.run(_run(asked, results.done(), keep, options))
    except (KeyboardInterrupt, TimeoutError):
        unfinished = True
        sys.stdout.write(
            "interrupted. Results of finished blocks are stored, start again to continue\n"
        )
    _write(results, options)
    return 2 if unfinished else int(results.tally(_PARTS).failed)


async def _run(
    asked: Sequence[str],
    done: set[str],
    keep: Callable[[Result], None],
    options: argparse.Namespace,
) -> None:
    on_brokers = blocks_of(
        [name for name in _PARTS if name in ON_BROKERS and name in asked], options.brokers
    )
    async with asyncio.timeout(options.minutes * 60):
        await run_blocks(
            [one for one in on_brokers if one.number < options.most and one.name not in done],
            keep,
            at_once=options.at_once,
            scale=options.scale,
            seed=options.seed,
        )
        for name in _ALONE:
            block = Block(name, "embedded")
            if name in asked and block.name not in done:
                result = await _alone(name, options)
                result.block = block.name
                keep(result)


async def _alone(name: str, options: argparse.Namespace) -> Result:
    match name:
        case "simulation":
            # This needs a thread, because it starts event loops.
            return Result("", [await asyncio.to_thread(parts.simulation, 1_000, options.seeds)])
        case "overload":
            return Result("", checks=await overload(installation_of("3.10")))
        case "fuzz":
            return Result("", checks=fuzz_everything(options.fuzz, options.seed))
        case _:
            return Result("", checks=[_fuzz_http_row(options)])


def _fuzz_http_row(options: argparse.Namespace) -> tuple[str, str, str]:
    asked = fuzz_http(options.http, options.seed, float("inf"))
    for finding in asked.findings:  # the page only shows one of them
        sys.stdout.write(f"http: {finding}\n")
    return asked.row()


def _tell(result: Result) -> None:
    told = [f"{result.block}: {result.error or 'ended'}"]
    for part in result.parts:
        told.append(
            f"  {part.name}, {part.broker}: {part.confirmed:,} confirmed, {part.lost} lost,"
            f" {sum(part.faults.values())} faults, {part.duplicates} duplicates,"
            f" broken {part.broken}, {part.seconds:.0f} s"
        )
        told += [f"    {note}" for note in part.notes]
    sys.stdout.write("\n".join(told) + "\n")
    sys.stdout.flush()


def _write(results: Results, options: argparse.Namespace) -> None:
    words = options.page.read_text(encoding="utf-8") if options.page.exists() else ""
    told = page(words, results.tally(_PARTS), "python -m tests.faults")
    options.page.write_text(told, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
