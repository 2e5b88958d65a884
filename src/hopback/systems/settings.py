"""Settings from environment variables: everything that is wrong with them is said at once."""

from __future__ import annotations

from collections.abc import Mapping

from hopback import HopbackError, RabbitMQ
from hopback.broker import Broker, EmbeddedBroker
from hopback.systems.language import Language

_YES = frozenset({"1", "true", "yes", "on"})
_NO = frozenset({"", "0", "false", "no", "off"})


class SettingsError(HopbackError):
    """Environment variables say what cannot be."""

    remedy = "Correct the variables that are named, or unset them for the documented defaults."


class Variables:
    """Reads variables by type and remembers what is wrong; `check` tells all of it."""

    def __init__(self, variables: Mapping[str, str]) -> None:
        self._variables = variables
        self._problems: list[str] = []

    def text(self, name: str, default: str) -> str:
        """The variable, or the default where it is unset or empty."""
        return self._variables.get(name, "").strip() or default

    def names(self, name: str, default: str) -> tuple[str, ...]:
        """Names separated by commas."""
        found = tuple(part.strip() for part in self.text(name, default).split(","))
        if not all(found):
            self._expected(name, "names separated by commas")
        return found

    def number(self, name: str, default: int, *, least: int = 0, most: int = 2**31 - 1) -> int:
        """A whole number within bounds."""
        text = self.text(name, str(default))
        if text.isascii() and text.isdigit() and least <= int(text) <= most:
            return int(text)
        self._expected(name, f"a whole number from {least} to {most}")
        return default

    def flag(self, name: str) -> bool:
        """Yes or no; no where it is unset."""
        text = self._variables.get(name, "").strip().lower()
        if text not in _YES | _NO:
            self._expected(name, "yes or no")
        return text in _YES

    def language(self, name: str) -> Language:
        """The default language of answers, `en` or `pt`. Unset is English."""
        text = self.text(name, "en").lower()
        if text not in ("en", "pt"):
            self._expected(name, "en or pt")
        return "pt" if text == "pt" else "en"

    def refuse(self, name: str, expected: str) -> None:
        """Note that a variable is not what it has to be."""
        self._expected(name, expected)

    def check(self) -> None:
        """Raise SettingsError if anything was wrong."""
        if self._problems:
            raise SettingsError("; ".join(self._problems))

    def _expected(self, name: str, expected: str) -> None:
        self._problems.append(f"{name}: expected {expected}, got {self._variables.get(name)!r}")


def broker_named(variables: Mapping[str, str]) -> Broker:
    """The broker of a process of its own: `HOPBACK_BROKER`, or a RabbitMQ on this machine."""
    url = variables.get("HOPBACK_BROKER") or "amqp://guest:guest@localhost/"
    if url == "embedded":
        return EmbeddedBroker()
    try:
        return RabbitMQ(url)
    except ValueError as error:
        raise SettingsError(f"HOPBACK_BROKER: {error}") from None
