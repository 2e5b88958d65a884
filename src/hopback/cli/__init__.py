"""The `hopback` command: it parses arguments, calls the library and prints."""

from __future__ import annotations

__all__ = ["main", "tune_memory"]


def main() -> None:
    """Run the command with the arguments of the process and exit with its code."""
    import gc
    import sys

    tune_memory()  # first, because importing hundreds of modules creates no garbage either

    from hopback.cli.app import run

    code = run(sys.argv[1:])
    # All resources are closed. A last garbage collection would take a tenth of a short command's time.
    gc.freeze()
    sys.exit(code)


def tune_memory() -> None:
    """Configure the process for many short-lived messages and many small reads from sockets."""
    import gc

    # Messages in flight are many young objects without cycles. With the default of 700 allocations
    # between two collections, a re-drive job spends a fifth of its time in the garbage collector.
    gc.set_threshold(50_000)
    # asyncio reads from a socket into a block of 256 KiB. The C library maps and unmaps a block of that
    # size at every read until a larger block was freed once. Then it takes such blocks from the heap.
    bytes(1 << 20)
