"""Memory is returned to the system after a burst."""

from __future__ import annotations

import subprocess
import sys

_PROGRAM = """
from hopback.broker.server.served import give_back_memory

def resident():
    with open("/proc/self/statm") as stat:
        return int(stat.read().split()[1]) * 4096

bodies = [bytes(1024) for _ in range(50_000)]
full = resident()
bodies = bodies[::1000]  # the remaining messages keep the heap from shrinking by itself
give_back_memory()
print(full - resident())
"""


def test_memory_of_burst_is_returned() -> None:
    """At least 40 of 50 MB, although some messages remain."""
    ran = subprocess.run(
        [sys.executable, "-c", _PROGRAM], capture_output=True, text=True, check=True
    )
    assert int(ran.stdout) > 40_000_000
