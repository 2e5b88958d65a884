"""Install the wheel alone and with each extra, each in a new environment.

Run in a root, in the clone: `python3 -m tests.pristine.installing`. Every feature is tried in each
environment: features of the extra must work, all others must name their extra.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

__all__ = ["extras_in", "main", "problems"]

_PROJECT = Path(__file__).resolve().parents[2]
_FEATURES = {
    "": """
from hopback import App
from hopback.testing import AppTest, in_virtual_time
app = App("shop")
@app.handler("orders", retry=["30s"])
async def handle(order: dict) -> None: ...
@in_virtual_time
async def main():
    async with AppTest(app) as shop:
        await shop.publish("orders", {"id": 7})
        assert (await shop.drain()).done == 1
main()
""",
    "management": """
from hopback.broker.management import Management, ManagementAddress
Management(ManagementAddress.derive("amqp://h"))
""",
    "metrics": "from hopback.observe.metrics import Metrics; Metrics()",
    "ops": "import hopback.ops.http; hopback.ops.http.create_app",
    "postgres": """
from hopback.store import open_database
open_database("postgresql://nobody@localhost/none")
""",
    "push": """
from hopback.extras import needs
with needs("push", "push"): import httpx
""",
    "speed": """
from hopback.extras import needs
with needs("speed", "a faster loop"): import uvloop
""",
    "store": "from hopback.store import open_database; open_database('sqlite:///orders.db')",
    "systems": """
from hopback.extras import needs
from hopback.systems import HOMES, load_system
with needs("systems", "a documented system"):
    for name in HOMES: load_system(name)
""",
    "tracing": "import hopback.runtime.tracing",
    "zstd": "from hopback.ops.messages.archive import check_writable; check_writable('x.jsonl.zst')",
}
"""A program for each extra that needs it. The empty name is the core."""

_EXPECTED = re.compile(r"works|MissingExtra: .*pip install 'hopback\[")
_TRY_ALL = """
import json, sys
results = {}
for extra, program in json.loads(sys.argv[1]).items():
    try:
        exec(program, {"__name__": "tried"})
        results[extra] = "works"
    except Exception as error:
        results[extra] = f"{type(error).__name__}: {error}"
print(json.dumps(results))
"""


def extras_in(extra: str, extras: dict[str, list[str]]) -> set[str]:
    """Return the extra and all extras that it includes."""
    found = {extra}
    for requirement in extras.get(extra, ()):
        if named := re.match(r"hopback\[(.*)\]", requirement):
            for other in named[1].split(","):
                found |= extras_in(other, extras)
    return found


def problems(extra: str, extras: dict[str, list[str]], results: dict[str, str]) -> list[str]:
    """Return the unexpected results in an environment with only that extra."""
    has = extras_in(extra, extras) | {""}
    where = f"hopback[{extra}]" if extra else "hopback"
    broken = [name for name in has & results.keys() if results[name] != "works"]
    found = [f"{where}: {name or 'core'}: {results[name]}" for name in broken]
    # Two extras may share a library, so a feature may work without its extra.
    silent = [name for name in results.keys() - has if not _EXPECTED.match(results[name])]
    found += [f"{where}: {name} does not name its extra: {results[name]}" for name in silent]
    return sorted(found)


def main() -> int:
    """Build once, install each extra and try every feature. Return 1 and print the problems if any exist."""
    extras = tomllib.loads((_PROJECT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    users = ["", *(name for name in extras if name != "dev")]
    found: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        _run(sys.executable, "-m", "venv", str(work / "tools"))
        pip = (str(work / "tools/bin/python"), "-m", "pip", "-q", "--disable-pip-version-check")
        _run(*pip, "wheel", "--no-deps", "--wheel-dir", str(work), str(_PROJECT))
        wheel = next(work.glob("hopback-*.whl"))
        for extra in users:
            python = work / f"env-{extra}" / "bin" / "python"
            _run(sys.executable, "-m", "venv", "--without-pip", str(python.parents[1]))
            named = f"hopback[{extra}]" if extra else "hopback"
            _run(*pip, "--python", str(python), "install", f"{named} @ {wheel.as_uri()}")
            _run(str(python.with_name("hopback")), "--version", cwd=work)
            told = json.loads(_run(str(python), "-c", _TRY_ALL, json.dumps(_FEATURES), cwd=work))
            found += problems(extra, extras, told)
            works = [name for name in told if name and told[name] == "works"]
            sys.stdout.write(f"{named}: {', '.join(works) or 'the core alone'}\n")
            sys.stdout.flush()
    sys.stdout.write("".join(f"{line}\n" for line in found))
    sys.stdout.write(f"{len(users)} environments, {len(found)} problems\n")
    return int(bool(found))


def _run(*command: str, cwd: Path = _PROJECT) -> str:
    ran = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    if ran.returncode:
        raise SystemExit(
            f"expected `{' '.join(command)[:300]}` to succeed; it printed: {ran.stderr[-2000:]}"
        )
    return ran.stdout


if __name__ == "__main__":
    raise SystemExit(main())
