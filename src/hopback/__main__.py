"""Entry point for `python -m hopback`."""

from __future__ import annotations

from hopback.cli import main

main()
