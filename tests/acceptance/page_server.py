"""The admin service over a seeded broker in a separate thread on a real socket."""

from __future__ import annotations

import asyncio
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

import uvicorn

from tests.harness.seeded import seeded

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from tests.harness.seeded import SeededService

__all__ = ["PageServer"]

T = TypeVar("T")
_PATIENCE_S = 30


class PageServer:
    """Runs while the block lasts, on a free port unless one is named. `admin` is for `create_app`."""

    def __init__(self, *, port: int = 0, **admin: Any) -> None:
        self._port = port
        self._admin = admin
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), name="page server")
        self._loop: asyncio.AbstractEventLoop | None = None
        self._server: uvicorn.Server | None = None
        self.service: SeededService | None = None
        self.url = ""

    def __enter__(self) -> Self:
        self._thread.start()
        if not self._ready.wait(_PATIENCE_S):
            raise TimeoutError("the page server did not come up")
        return self

    def __exit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.should_exit = True
        self._thread.join(_PATIENCE_S)

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        """Do something on the server's own loop."""
        assert self._loop is not None
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(_PATIENCE_S)

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        with tempfile.TemporaryDirectory() as folder:
            async with seeded(Path(folder), **self._admin) as self.service:
                config = uvicorn.Config(
                    self.service.asgi, port=self._port, log_config=None, timeout_graceful_shutdown=1
                )
                self._server = uvicorn.Server(config)
                serving = asyncio.create_task(self._server.serve())
                while not self._server.started:  # noqa: ASYNC110  it offers nothing to wait for
                    await asyncio.sleep(0.01)
                port = self._server.servers[0].sockets[0].getsockname()[1]
                self.url = f"http://127.0.0.1:{port}"
                self._ready.set()
                await serving
