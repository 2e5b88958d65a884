"""Count the errors in the files of discarded messages.

Only lines that were added since the last survey are read.
"""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from hopback.errors import BadLine
from hopback.ops.contract.requests import JobKind
from hopback.ops.contract.surveys import ErrorGroup  # noqa: TC001  msgspec reads it at run time
from hopback.ops.contract.values import Moment
from hopback.ops.messages.archive import job_and_run, list_discard_files, read_line, read_lines_from
from hopback.ops.messages.error_groups import add_errors, group_errors

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from hopback.ops.brokers.discovery import DeadLetterQueue
    from hopback.ops.documents import Documents
    from hopback.ops.jobs.journal import Journal

_ARCHIVE = "archive-survey"
_MOST_LINES = 100_000
"""Lines that a survey reads from all files, which takes about ten seconds. The next survey
continues there.
"""
_MOST_BYTES = 256 * 1024 * 1024
"""Bytes that a survey reads from a file. The next survey continues there."""


class ArchiveSurvey(Struct, frozen=True, rename="camel", kw_only=True):
    """The errors in a file up to a position.

    It is stored under the job and the run, because each run writes one file. `place` is the host
    and the folder where the file was last read. Only processes with the same place can know whether
    the file was deleted.
    """

    place: str = ""
    file: str = ""
    job: str = ""
    at: Moment = Moment(0)
    queue: str = ""
    seen: int = 0
    position: int = 0
    groups: tuple[ErrorGroup, ...] = ()


class ArchiveSurveys:
    """Survey the files of discarded messages in a folder. Without a folder, only the stored surveys
    are available.
    """

    def __init__(self, documents: Documents, journal: Journal, folder: Path | None) -> None:
        self._documents = documents
        self._journal = journal
        self._folder = folder

    async def known(self) -> tuple[ArchiveSurvey, ...]:
        """Return the last survey of each file."""
        return tuple(one for _, one in sorted((await self._read()).items()))

    async def _read(self) -> dict[str, ArchiveSurvey]:
        return await self._documents.read(_ARCHIVE, ArchiveSurvey)

    async def run(self, sources: Mapping[str, DeadLetterQueue]) -> None:
        """Read the new lines of all files, and remove surveys of deleted files."""
        if self._folder is None:
            return
        kept = await self._read()
        found = await asyncio.to_thread(list_discard_files, self._folder)
        paths = {"{}/{}".format(*job_and_run(path)): path for path in found}
        place = f"{socket.gethostname()}:{self._folder}"
        for key, one in kept.items():
            if key not in paths and await self._is_deleted(one, place):
                await self._documents.delete(_ARCHIVE, key)
        room = _MOST_LINES
        for key, path in paths.items():
            job, _ = job_and_run(path)
            if key not in kept and not await self._is_discard(job):
                continue  # it belongs to another broker that uses the same folder
            known = kept.get(key, ArchiveSurvey())
            last = replace(known, place=place, file=path.name, job=job)
            now = Moment(self._documents.clock.now())
            more = await asyncio.to_thread(_continue_survey, path, last, room, sources, now)
            room -= more.seen - last.seen
            if more.position != known.position or known.place != place:
                await self._documents.write(_ARCHIVE, {key: more})
            if room <= 0:
                break

    async def _is_deleted(self, one: ArchiveSurvey, place: str) -> bool:
        """Return whether a file that is missing in this folder was deleted.

        As long as its job exists, it may be in another place.
        """
        return one.place == place or not await self._is_discard(one.job)

    async def _is_discard(self, job_id: str) -> bool:
        """Return whether this is a discard of the same broker."""
        job = await self._journal.job(job_id)
        if job is None or job.kind is not JobKind.DISCARD:
            return False
        return job.spec.broker == self._documents.broker


def _continue_survey(
    path: Path,
    last: ArchiveSurvey,
    most: int,
    sources: Mapping[str, DeadLetterQueue],
    now: Moment,
) -> ArchiveSurvey:
    """Add the lines after the position to a survey. Files can be large, so this runs in a thread."""
    grouping, queue, seen = group_errors(), last.queue, 0
    lines, position = read_lines_from(path, last.position, most, _MOST_BYTES)
    for line in lines:
        try:
            archived = read_line(line)
        except BadLine:  # incomplete because of a crash, which an import would report
            continue
        seen += 1
        queue = archived.queue
        grouping.see(archived, seen, sources.get(queue))
    return replace(
        last,
        at=now,
        queue=queue,
        seen=last.seen + seen,
        position=position,
        groups=add_errors(last.groups, grouping.groups(), now),
    )
