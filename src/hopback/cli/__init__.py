"""The `hopback` command. Thin: it parses, calls the library and prints."""

from __future__ import annotations

__all__ = ["main"]


def main() -> None:
    """The console script: run the command with the process's arguments and leave with its code."""
    import sys

    from hopback.cli.app import run

    sys.exit(run(sys.argv[1:]))
