"""Notes on groups of dead letters, saved filters, and the history of a group.

A group consists of all messages in a queue that have the same fingerprint. Notes and filters are
stored in the journal. All users who can view the queue can see them.
"""

from __future__ import annotations

import re
import secrets
from typing import TYPE_CHECKING, Annotated, Protocol

from msgspec import Meta, Struct

from hopback.errors import BadRequest, NoSuch
from hopback.ops.contract.requests import AuditQuery, Who
from hopback.ops.contract.values import AuditEntry, Moment
from hopback.ops.messages.filters import parse_filter

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from hopback.ops.documents import Documents

_MOST_NOTES = 200  # notes per queue, so that a page can show all of them
_MOST_FILTERS = 100  # saved filters per queue, so that a menu can show all of them
_LOOKED_THROUGH = 500  # newest audit entries of a queue that are searched for a group
_GROUP = re.compile(r"\bgroup:\"?([0-9a-zA-Z]{4,64})")
_NOTES, _FILTERS = "group-note", "saved-filter"

_Text = Annotated[str, Meta(min_length=1, max_length=2000)]
_Group = Annotated[str, Meta(min_length=4, max_length=64, pattern="^[0-9a-zA-Z]+$")]
_Name = Annotated[str, Meta(min_length=1, max_length=100)]
_Filter = Annotated[str, Meta(min_length=1, max_length=4096)]


class GroupNote(Struct, frozen=True, rename="camel"):
    """A note on a group, for example "known, fixed in 2.3"."""

    id: str
    queue: str
    group: str
    text: str
    by: str
    by_id: str
    at: Moment


class NoteList(Struct, frozen=True, rename="camel"):
    """Notes, newest first."""

    items: tuple[GroupNote, ...]


class SavedFilter(Struct, frozen=True, rename="camel"):
    """A filter that was saved with a name. It is available to all users of the queue."""

    name: str
    queue: str
    filter: str
    by: str
    at: Moment


class FilterList(Struct, frozen=True, rename="camel"):
    """Saved filters, sorted by name."""

    items: tuple[SavedFilter, ...]


class NewNote(Struct, frozen=True, forbid_unknown_fields=True):
    group: _Group
    text: _Text


class NewFilter(Struct, frozen=True, forbid_unknown_fields=True):
    """A new filter. It replaces an existing filter with the same name."""

    name: _Name
    filter: _Filter


class GroupNotes(Protocol):
    """Operations on notes, saved filters and the history of groups."""

    async def of(self, queue: str, group: str = "") -> tuple[GroupNote, ...]:
        """List the notes on one group or on all groups of a queue, newest first."""

    async def add(self, queue: str, note: NewNote) -> GroupNote:
        """Add a note to a group."""

    async def remove(self, queue: str, note: str) -> None:
        """Remove a note."""

    async def history(self, queue: str, group: str = "") -> tuple[AuditEntry, ...]:
        """List the re-drives, discards and notes of a group or a queue, newest first."""

    async def filters(self, queue: str) -> tuple[SavedFilter, ...]:
        """List the saved filters of a queue, sorted by name."""

    async def save_filter(self, queue: str, new: NewFilter) -> SavedFilter:
        """Save a filter. It replaces an existing filter with the same name."""

    async def remove_filter(self, queue: str, name: str) -> None:
        """Remove a saved filter."""


class JournalNotes:
    """The notes of a broker, stored in a journal. `who` is the user, and `write` and `read` access
    the audit.
    """

    def __init__(
        self,
        documents: Documents,
        who: Who,
        write: Callable[..., Awaitable[None]],
        read: Callable[[AuditQuery], Awaitable[tuple[AuditEntry, ...]]],
    ) -> None:
        self._documents = documents
        self._who = who
        self._write = write
        self._read = read

    async def of(self, queue: str, group: str = "") -> tuple[GroupNote, ...]:
        notes = await self._documents.read(_NOTES, GroupNote)
        found = [
            one for one in notes.values() if one.queue == queue and one.group.startswith(group)
        ]
        return tuple(sorted(found, key=lambda one: one.at, reverse=True))

    async def add(self, queue: str, note: NewNote) -> GroupNote:
        """Add a note. Raises BadRequest if there are too many."""
        if not note.text.strip():
            raise BadRequest("text", "a note of 1 to 2,000 characters")
        if len(await self.of(queue)) >= _MOST_NOTES:
            raise BadRequest("text", f"at most {_MOST_NOTES} notes on one queue: remove some")
        made = GroupNote(
            f"n-{secrets.token_hex(6)}",
            queue,
            note.group,
            note.text.strip(),
            self._who.name or self._who.id,
            self._who.id,
            Moment(self._documents.clock.now()),
        )
        await self._documents.write(_NOTES, {made.id: made})
        details = {"group": made.group, "note": made.id, "text": made.text}
        await self._write("note.add", queue=queue, details=details)
        return made

    async def remove(self, queue: str, note: str) -> None:
        """Remove a note. Raises NoSuch if it does not exist."""
        found = next((one for one in await self.of(queue) if one.id == note), None)
        if found is None:
            raise NoSuch("note", note)
        await self._documents.delete(_NOTES, note)
        details = {"group": found.group, "note": note, "text": found.text}
        await self._write("note.remove", queue=queue, details=details)

    async def history(self, queue: str, group: str = "") -> tuple[AuditEntry, ...]:
        """List the actions on a group or a queue that are among the newest 500 entries of the queue."""
        entries = await self._read(AuditQuery(queue=queue, limit=_LOOKED_THROUGH))
        if not group:
            return entries
        found = []
        for entry in entries:
            # The entry contains the group or a filter that selects it.
            names = _GROUP.findall(str(entry.details.get("filter", "")))
            is_named = str(entry.details.get("group", "")).startswith(group)
            if is_named or any(group.startswith(one) or one.startswith(group) for one in names):
                found.append(entry)
        return tuple(found)

    async def filters(self, queue: str) -> tuple[SavedFilter, ...]:
        kept = (await self._documents.read(_FILTERS, SavedFilter)).values()
        return tuple(sorted((one for one in kept if one.queue == queue), key=lambda one: one.name))

    async def save_filter(self, queue: str, new: NewFilter) -> SavedFilter:
        """Save a filter. Raises BadFilter if it is not valid."""
        parse_filter(new.filter)
        names = {one.name for one in await self.filters(queue)}
        if new.name not in names and len(names) >= _MOST_FILTERS:
            raise BadRequest("name", f"at most {_MOST_FILTERS} filters of one queue: remove some")
        by, now = self._who.name or self._who.id, Moment(self._documents.clock.now())
        made = SavedFilter(new.name, queue, new.filter, by, now)
        await self._documents.write(_FILTERS, {f"{queue}\n{new.name}": made})
        details = {"name": new.name, "filter": new.filter}
        await self._write("filter.save", queue=queue, details=details)
        return made

    async def remove_filter(self, queue: str, name: str) -> None:
        """Remove a saved filter. Raises NoSuch if it does not exist."""
        if name not in {one.name for one in await self.filters(queue)}:
            raise NoSuch("saved filter", name)
        await self._documents.delete(_FILTERS, f"{queue}\n{name}")
        await self._write("filter.remove", queue=queue, details={"name": name})
