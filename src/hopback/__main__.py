"""`python -m hopback` is the `hopback` command."""

from __future__ import annotations

from hopback.cli import main

main()
