"""The topology package loads its modules one by one."""

from __future__ import annotations

import subprocess
import sys


def test_topology_model_imports_no_reader_or_writer() -> None:
    program = "import sys, hopback.topology.model; print(*sys.modules)"
    ran = subprocess.run(
        [sys.executable, "-I", "-c", program], capture_output=True, text=True, check=True
    )
    loaded = {name for name in ran.stdout.split() if name.startswith("hopback.topology.")}
    assert loaded == {"hopback.topology.model"}
    assert {"json", "tomllib", "tomli_w"} & set(ran.stdout.split()) == set()
