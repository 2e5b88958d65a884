"""The earlier version, out of the history: what it writes is kept beside this, so that tests need no history.

`python -m tests.upgrade.earlier` writes `written_by_0_1_0` anew; that needs a clone with its history.
"""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from tests.harness.archives import unpack

__all__ = ["COMMIT", "PROGRAMS", "WRITTEN", "take_out"]

ROOT = Path(__file__).resolve().parents[2]
COMMIT = "cc816f4"
"""0.1.0 as it was first used in earnest."""
WRITTEN = Path(__file__).with_name("written_by_0_1_0")
PROGRAMS = Path(__file__).with_name("programs")
"""Programs that run on the earlier version, or on both."""
_SETTINGS = "docs/reference/http-api.md"


def take_out(folder: Path) -> Path | None:
    """The source of the earlier version in a folder, for PYTHONPATH; None without the history."""
    archive = ["git", "-C", str(ROOT), "archive", COMMIT]
    ran = subprocess.run([*archive, "src", _SETTINGS], capture_output=True, check=False)
    if ran.returncode:
        return None
    with tarfile.open(fileobj=io.BytesIO(ran.stdout)) as taken:
        unpack(taken, folder)
    return folder / "src"


def main() -> None:
    """Let the earlier version write, and keep what it has written."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        source = take_out(folder)
        if source is None:
            raise SystemExit(f"commit {COMMIT} is not in this clone: fetch its history")
        shutil.rmtree(WRITTEN, ignore_errors=True)
        WRITTEN.mkdir()
        subprocess.run(
            [sys.executable, str(PROGRAMS / "writer.py"), str(WRITTEN)],
            env={**os.environ, "PYTHONPATH": str(source)},
            check=True,
        )
        # The traceback of a message that waits names the file of its handler: not as it lies here.
        messages = WRITTEN / "messages.ndjson"
        messages.write_text(messages.read_text().replace(str(ROOT), "/srv/shop"))
        # The settings of `hopback serve` are written by people: the example of that version's own page.
        page = (folder / _SETTINGS).read_text(encoding="utf-8")
        _, _, rest = page.partition("```toml")
        (WRITTEN / "admin.toml").write_text(rest.partition("\n")[2].partition("```")[0])


if __name__ == "__main__":
    main()
