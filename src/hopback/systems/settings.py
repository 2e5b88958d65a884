"""Dataclasses for settings whose fields are read from environment variables.

```python
@dataclass(frozen=True, slots=True)
class ShopSettings(EnvironmentSettings):
    database: str = variable("DATABASE_URL", "sqlite:///shop.db")
    retries: int = variable("SHOP_RETRIES", 3, most=1000)
```
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import Field, dataclass, field, fields, is_dataclass, replace
from typing import Any, Self, TypeVar

from hopback import HopbackError, RabbitMQ
from hopback.broker import Broker, EmbeddedBroker
from hopback.errors import InvalidDeclaration

T = TypeVar("T")

_YES = frozenset({"1", "true", "yes", "on"})
_NO = frozenset({"0", "false", "no", "off"})


class SettingsError(HopbackError):
    """Some environment variables have invalid values."""

    remedy = "Correct the variables that are named, or unset them for the documented defaults."


def variable(
    name: str,
    default: T,
    *,
    least: int = 0,
    most: int = 2**31 - 1,
    choices: Sequence[T] = (),
    read: Callable[[str], T] | None = None,
    secret: bool = False,
) -> T:
    """Return a dataclass field that is set by the environment variable `name`.

    The text is parsed according to the type of the default, unless there is a function `read`. It
    raises ValueError with the expected value if the text is invalid. If the default is a dataclass,
    `name` is the prefix for the variables of its fields. The value of a `secret` is never shown.
    """
    rules = {"name": name, "least": least, "most": most, "choices": choices, "read": read}
    # For type checkers, `field` returns the type of the default.
    return field(default=default, repr=not secret, metadata={**rules, "secret": secret})


@dataclass(frozen=True, slots=True)
class EnvironmentSettings:
    """The base class for the settings of a system."""

    @classmethod
    def read(cls, variables: Mapping[str, str]) -> Self:
        """Read the settings from environment variables. Raises SettingsError with all problems if
        any value is invalid.
        """
        problems: list[str] = []
        found: Self = _fill(cls(), variables, "", problems)
        if not problems:
            problems += found.problems(variables)
        if problems:
            raise SettingsError("; ".join(problems))
        return found

    def problems(self, variables: Mapping[str, str]) -> Sequence[str]:
        """Return problems that are caused by a combination of values. Subclasses override this."""
        del variables
        return ()


def _fill(plain: Any, variables: Mapping[str, str], prefix: str, problems: list[str]) -> Any:
    """Return a copy of the dataclass with the values from the environment."""
    values = {}
    for one in fields(plain):
        name, default = prefix + one.metadata["name"], getattr(plain, one.name)
        if is_dataclass(default):
            values[one.name] = _fill(default, variables, name, problems)
        elif text := variables.get(name, "").strip():
            try:
                values[one.name] = _parse(text, default, one)
            except ValueError as error:
                got = "" if one.metadata["secret"] else f", got {variables.get(name)!r}"
                problems.append(f"{name}: expected {error}{got}")
    return replace(plain, **values)


def _parse(text: str, default: Any, one: Field[Any]) -> Any:
    """Parse a value. Raises ValueError with the expected value if it is invalid."""
    rules = one.metadata
    if rules["read"] is not None:
        return rules["read"](text)
    if rules["choices"]:
        for choice in rules["choices"]:
            if text.lower() == choice:
                return choice
        raise ValueError(" or ".join(rules["choices"]))
    if isinstance(default, bool):
        if text.lower() not in _YES | _NO:
            raise ValueError("yes or no")
        return text.lower() in _YES
    if isinstance(default, int):
        if text.isascii() and text.isdigit() and rules["least"] <= int(text) <= rules["most"]:
            return int(text)
        raise ValueError(f"a whole number from {rules['least']} to {rules['most']}")
    if isinstance(default, tuple):
        return read_names(text)
    return type(default)(text)


def read_names(text: str) -> tuple[str, ...]:
    """Split a list of names at its commas."""
    found = tuple(part.strip() for part in text.split(","))
    if not all(found):
        raise ValueError("names separated by commas")
    return found


def broker_named(variables: Mapping[str, str]) -> Broker:
    """Return the broker for `HOPBACK_BROKER`. The default is RabbitMQ on this machine."""
    url = variables.get("HOPBACK_BROKER") or "amqp://guest:guest@localhost/"
    if url == "embedded":
        return EmbeddedBroker()
    try:
        return RabbitMQ(url)
    except InvalidDeclaration as error:
        raise SettingsError(f"HOPBACK_BROKER: {error}") from None
