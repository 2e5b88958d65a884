"""The `hopback` command. Thin: it parses, calls the library and prints."""

from __future__ import annotations

__all__ = ["main"]


def main() -> None:
    """The console script: run the command with the process's arguments and leave with its code."""
    import gc
    import sys

    from hopback.cli.app import run

    # Messages in flight are many young objects without cycles: looked through every 700 allocations,
    # as is the default, they cost a re-drive job a fifth of its time.
    gc.set_threshold(50_000)
    sys.exit(run(sys.argv[1:]))
