"""Messages and groups of them as documents: the values of the contract as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hopback.deadletters.codec import to_json

if TYPE_CHECKING:
    from hopback.deadletters.contract import DeadLetter, Group, MessageView

__all__ = ["group_document", "letter_document", "message_document"]


def letter_document(letter: DeadLetter) -> dict[str, Any]:
    """A dead letter without its body."""
    found: dict[str, Any] = to_json(letter)
    return found


def group_document(group: Group) -> dict[str, Any]:
    """Dead letters that have something in common."""
    found: dict[str, Any] = to_json(group)
    return found


def message_document(view: MessageView) -> dict[str, Any]:
    """One message with everything about it; a large or binary payload is left out."""
    found: dict[str, Any] = to_json(view)
    return found
