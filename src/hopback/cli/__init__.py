"""The `hopback` command. Thin: it parses, calls the library and prints."""

from __future__ import annotations

__all__ = ["main", "tune_memory"]


def main() -> None:
    """The console script: run the command with the process's arguments and leave with its code."""
    import gc
    import sys

    tune_memory()  # first: hundreds of modules are not garbage, either

    from hopback.cli.app import run

    code = run(sys.argv[1:])
    # Everything is closed and goes with the process; looking through all of it once more for what refers to
    # itself would take a tenth of a short command's time.
    gc.freeze()
    sys.exit(code)


def tune_memory() -> None:
    """Set the process up for many short-lived messages and many small reads from sockets."""
    import gc

    # Messages in flight are many young objects without cycles: looked through every 700 allocations,
    # as is the default, they cost a re-drive job a fifth of its time.
    gc.set_threshold(50_000)
    # asyncio reads from a socket into 256 KiB at a time. The C library asks the kernel for a block of
    # that size and gives it back at every read, three calls, until a larger one was freed once: from
    # then on it takes such blocks from the heap. A megabyte that nobody touches is enough.
    bytes(1 << 20)
