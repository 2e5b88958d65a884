"""An application that takes its (virtual) time, and the question whether anything is left of it."""

from __future__ import annotations

import asyncio
from typing import Any

from hopback import App

__all__ = ["alone", "slow_app"]


def alone() -> None:
    """Fail if any task but the test's own is alive."""
    assert asyncio.all_tasks() == {asyncio.current_task()}


def slow_app(seconds: float, **options: Any) -> tuple[App, list[str]]:
    """An application with a slow handler, and a record of its runs."""
    app, told = App("shop"), list[str]()

    @app.handler("orders", retry=["30s"], **options)
    async def handle(payload: str) -> None:
        told.append(f"begin {payload}")
        await asyncio.sleep(seconds)
        told.append(f"end {payload}")

    return app, told
