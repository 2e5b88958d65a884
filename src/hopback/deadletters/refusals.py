"""Why an operation on dead letters was not begun. Each is about the request, never about a broker."""

from __future__ import annotations

from typing import ClassVar

from hopback.errors import HopbackError

__all__ = ["BadRequest", "CountMismatch", "NoSuch", "NotAllowed", "SessionOver"]


class BadRequest(HopbackError):
    """The request cannot be carried out as it stands; `field` is the part that has to change."""

    remedy: ClassVar[str] = "Correct the part that is named; the text says what is expected there."

    def __init__(self, field: str, expected: str) -> None:
        self.field = field
        self.expected = expected
        super().__init__(f"{field}: expected {expected}")


class NoSuch(HopbackError):
    """There is no such queue, session, message or job; `kind` says which, `name` what was asked for."""

    remedy: ClassVar[str] = "Correct the name, or list what there is."

    def __init__(self, kind: str, name: str, hint: str = "") -> None:
        self.kind = kind
        self.name = name
        super().__init__(f"there is no {kind} {name!r}{hint and f': {hint}'}")


class SessionOver(NoSuch):
    """The browse session was there, and holds nothing any more."""

    remedy: ClassVar[str] = "Open another session; what the last one held is in its queue again."

    def __init__(self, name: str, why: str) -> None:
        super().__init__("open session", name, f"it holds nothing any more ({why})")


class CountMismatch(HopbackError):
    """The selection has another size than was expected; nothing was touched."""

    remedy: ClassVar[str] = "Look again at what is there now, then repeat with the present count."

    def __init__(self, expected: int, found: int) -> None:
        self.expected = expected
        self.found = found
        super().__init__(f"expected {expected} messages, found {found}; nothing was touched")


class NotAllowed(HopbackError):
    """This operation is switched off here."""

    remedy: ClassVar[str] = "Switch it on in the settings of whoever runs this, if it is wanted."
