"""The `hopback` command. It parses the arguments, calls the library and prints the results."""

from __future__ import annotations

__all__ = ["main", "tune_memory"]


def main() -> None:
    """Run the command with the arguments of the process and exit with its status."""
    import gc
    import sys

    tune_memory()  # first, because imports create many objects but no garbage

    from hopback.cli.app import run

    code = run(sys.argv[1:])
    # All resources are closed. Skip the final garbage collection, which would take a tenth of the
    # time of a short command.
    gc.freeze()
    sys.exit(code)


def tune_memory() -> None:
    """Tune the process for many short-lived messages and many small reads from sockets."""
    import gc

    # Messages in flight are many young objects without cycles. By default, the garbage collector
    # runs after every 700 allocations, and a re-drive job would spend a fifth of its time there.
    gc.set_threshold(50_000)
    # asyncio allocates a block of 256 KiB for each read from a socket. The C library maps and
    # unmaps such a block each time, unless a larger block has been freed before. Then it uses the
    # heap.
    bytes(1 << 20)
