"""The gateway, an HTTP API to upload files and query their status. Its errors are in English or
Portuguese.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from hopback.broker import Broker
from hopback.ops import ManagedBroker, Operations
from hopback.runtime import Clock
from hopback.systems.file_pipeline.admin_endpoints import admin_routes
from hopback.systems.file_pipeline.part_runtime import PartRuntime
from hopback.systems.file_pipeline.reception import receive
from hopback.systems.file_pipeline.register import STATUSES, Register
from hopback.systems.file_pipeline.settings import PipelineSettings
from hopback.systems.file_pipeline.storage import is_file_id
from hopback.systems.web import (
    RequestRefused,
    TopologyPublisher,
    correlation_id,
    web_application,
)

_MOST = 500
"""The maximum number of rows in a response. Requests for more are refused."""


def gateway(settings: PipelineSettings, broker: Broker, clock: Clock | None = None) -> Starlette:
    """Return the web application.

    While the broker is unavailable, files are still accepted and their commands are kept in the
    outbox. This is why readiness only depends on the database.
    """
    runtime = PartRuntime(settings, clock)
    topology = settings.topology()
    managed = ManagedBroker(broker, topologies=[topology], clock=runtime.clock)
    operations = Operations(managed)
    api = _GatewayApi(runtime)
    publisher = TopologyPublisher(broker, topology, name="file-pipeline gateway")

    @asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        async with publisher, runtime.open(publisher), operations:
            yield

    return web_application(
        [
            Route("/files", api.upload, methods=["POST"]),
            Route("/files", api.list_files),
            Route("/files/{file_id}", api.show_file),
            Route("/files/{file_id}/events", api.show_events),
            Route("/files/{file_id}/thumbnail", api.show_thumbnail),
            Route("/files/{file_id}/reprocess", api.reprocess, methods=["POST"]),
            Route("/notifications", api.list_notifications),
            *admin_routes(operations, settings, runtime.clock),
        ],
        database=runtime.database,
        lifespan=lifespan,
        languages=("pt", "en") if settings.language == "pt" else ("en", "pt"),
    )


class _GatewayApi:
    def __init__(self, runtime: PartRuntime) -> None:
        self._runtime = runtime
        self._register = Register(runtime.database)

    async def upload(self, request: Request) -> JSONResponse:
        """Receive a file. The response is sent when the file is on the disk and in the database."""
        async with receive(request, self._runtime.settings) as received:
            await self._register.enter(received, self._runtime.storage, correlation_id(request))
        where = f"{request.scope.get('root_path', '')}/files/{received.file_id}"
        body = {"fileId": received.file_id, "name": received.name, "status": "accepted"}
        return JSONResponse(body, 202, {"Location": where})

    async def list_files(self, request: Request) -> JSONResponse:
        status = request.query_params.get("status")
        if status is not None and status not in STATUSES:
            known = ", ".join(STATUSES)
            raise RequestRefused(
                f"status: expected one of {known}", f"status: esperado um de {known}"
            )
        found, total = await self._register.files(status, _number(request, "limit", 50))
        return JSONResponse({"items": found, "total": total})

    async def show_file(self, request: Request) -> JSONResponse:
        found = await self._register.file(_file_id(request))
        if found is None:
            raise _no_such_file()
        return JSONResponse(found)

    async def show_events(self, request: Request) -> JSONResponse:
        """List the events of a file in chronological order."""
        return JSONResponse({"items": await self._register.events(_file_id(request))})

    async def show_thumbnail(self, request: Request) -> Response:
        found = await asyncio.to_thread(self._runtime.storage.read_thumbnail, _file_id(request))
        if found is None:
            raise RequestRefused("no thumbnail yet", "ainda sem miniatura", status=404)
        safe = {"X-Content-Type-Options": "nosniff", "Cache-Control": "no-cache"}
        return Response(found, headers=safe, media_type="image/png")

    async def reprocess(self, request: Request) -> JSONResponse:
        file_id = _file_id(request)
        run = await self._register.reprocess(file_id, correlation_id(request))
        if run is None:
            raise _no_such_file()
        return JSONResponse({"fileId": file_id, "run": run, "status": "accepted"}, 202)

    async def list_notifications(self, request: Request) -> JSONResponse:
        after = _number(request, "after", 0, least=0, most=2**31)
        found = await self._register.notifications(after, _number(request, "limit", 50))
        return JSONResponse({"items": found, "next": found[-1]["number"] if found else after})


def _file_id(request: Request) -> str:
    found: str = request.path_params["file_id"]
    if not is_file_id(found):
        raise _no_such_file()
    return found


def _no_such_file() -> RequestRefused:
    return RequestRefused("no such file", "arquivo inexistente", status=404)


def _number(request: Request, name: str, default: int, *, least: int = 1, most: int = _MOST) -> int:
    text = request.query_params.get(name, str(default))
    if not re.fullmatch(r"[0-9]{1,10}", text) or not least <= int(text) <= most:
        raise RequestRefused(
            f"{name}: expected a whole number from {least} to {most}",
            f"{name}: esperado um número inteiro de {least} a {most}",
        )
    return int(text)
