"""The common form of the four stages of a file: work, then announce the results, or fail.

The work may be repeated, because it writes files under the id of the file. The results are announced in the
transaction that marks the message as processed, so a redelivery has no second effect. A stage announces its
last failure before its message is parked.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable

from hopback import App, Context, Park
from hopback.designs import file_pipeline
from hopback.systems.file_pipeline.messages import (
    Malformed,
    PipelineMessage,
    PipelinePayload,
    ProcessingFailed,
)
from hopback.systems.file_pipeline.part_runtime import PartRuntime

_LOG = logging.getLogger("hopback.systems.file_pipeline")
_REDRIVES = "hopback-redrives"
"""The header with the number of re-drives of a message."""


class HopelessFile(Exception):
    """The file can never be processed. A retry would fail again."""


def assemble(name: str, runtime: PartRuntime, *parts: Callable[[App, PartRuntime], None]) -> App:
    """Return an application of these parts. Its lifespan opens the runtime."""
    settings = runtime.settings
    topology = file_pipeline(hardened=settings.hardened, retry_ttl_ms=settings.retry_ttl_ms)
    app = App(name, topology=topology, lifespan=runtime.open)
    for add in parts:
        add(app, runtime)
    return app


def stage(
    app: App,
    runtime: PartRuntime,
    queue: str,
    work: Callable[[PipelineMessage], Awaitable[Iterable[PipelinePayload]]],
    *,
    producer: str,
    concurrency: int = 4,
) -> None:
    """Make `work` the handler of a queue. Its results are announced."""

    @app.handler(queue, concurrency=concurrency)
    async def handle(message: PipelineMessage, context: Context) -> Park | None:
        try:
            results = await work(message)
        except Malformed as error:
            return Park(str(error))
        except HopelessFile as error:
            await _give_up(runtime, message, context, producer, str(error))
            return Park(str(error))
        except Exception as error:
            if context.is_last_attempt:
                # The reason is public, so it must not contain paths of this machine.
                text = (
                    error.strerror if isinstance(error, OSError) and error.strerror else str(error)
                )
                await _give_up(
                    runtime, message, context, producer, f"{type(error).__name__}: {text}"
                )
            raise
        await runtime.conclude(queue, message, *results, producer=producer)
        return None


async def _give_up(
    runtime: PartRuntime, message: PipelineMessage, context: Context, producer: str, reason: str
) -> None:
    """Announce the failure of the file, once for each re-drive.

    The message is parked even if this fails.
    """
    file_id, run = message.payload.get("fileId"), message.payload.get("run")
    if not isinstance(file_id, str) or not isinstance(run, int):
        return
    failed = ProcessingFailed(file_id, run, producer, reason[:500])
    try:
        async with runtime.database.transaction() as tx:
            redrives = str(context.headers.get(_REDRIVES, ""))
            await runtime.announce(tx, failed, producer=producer, cause=message, occasion=redrives)
    except Exception:
        _LOG.exception("the failure of file %s was not announced", file_id)
