"""Run pytest, run a few failed tests again alone, and list them at the end.

`python -m tests.harness.alone PYTEST-OPTIONS…` is part of `make test`. Tests with brokers,
databases and browsers share two cores. A test that waits for a server may exceed its timeout while
three others start theirs. A test that fails alone is broken. A test that passes only alone is
printed, because it needs a longer timeout or hides a race.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

_FAILED = Path(".pytest_cache/v/cache/lastfailed")
_TESTS_FAILED = 1
"""pytest's exit status for failed tests. Others are interruptions, usage errors or no tests."""
_FEW = 5
"""More than these are not chance."""


def main(options: list[str]) -> int:
    """pytest's exit status: of the first run, or of the second where there was one."""
    _FAILED.unlink(missing_ok=True)
    status = _pytest(options)
    named = json.loads(_FAILED.read_text()) if _FAILED.exists() else {}
    failed = sorted(set(map(plain_name, named)))
    if status != _TESTS_FAILED or not 0 < len(failed) <= _FEW:
        return status
    sys.stdout.write(
        f"hopback: {len(failed)} failed in parallel with other tests and are run again alone\n"
    )
    sys.stdout.flush()
    status = _pytest(["-p", "no:xdist", *failed])
    if status == 0:
        listed = "".join(f"\n  {one}" for one in failed)
        sys.stdout.write(f"hopback: passed only alone, give them patience:{listed}\n")
    return status


def plain_name(name: str) -> str:
    """Remove the group that pytest-xdist appends to the name of a test, and the label of a subtest."""
    return re.sub(r"@[^\[\]@]+(\[.*\])?$", "", name)


def _pytest(options: list[str]) -> int:
    return subprocess.run([sys.executable, "-m", "pytest", *options], check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
