"""Run pytest. If only a few tests fail, run them again without parallel tests and list them.

`python -m tests.harness.alone PYTEST-OPTIONS…` is part of `make test`. Tests with brokers,
databases and browsers share two cores, so a test that waits for a server may exceed its timeout
while three other tests start theirs. A test that also fails alone is broken. A test that only
passes alone is listed, because it needs a longer timeout or has a race condition.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

_FAILED = Path(".pytest_cache/v/cache/lastfailed")
_TESTS_FAILED = 1
"""The exit status of pytest if tests failed. Other values mean an interruption, a usage error or
that there were no tests.
"""
_FEW = 5
"""If more tests fail, it is not by chance, so they are not run again."""


def main(options: list[str]) -> int:
    """Run pytest and return its exit status. If tests were run again, this is the status of the
    second run.
    """
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
    """Return the name of a test without the group that pytest-xdist appends and without the label
    of a subtest.
    """
    return re.sub(r"@[^\[\]@]+(\[.*\])?$", "", name)


def _pytest(options: list[str]) -> int:
    return subprocess.run([sys.executable, "-m", "pytest", *options], check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
