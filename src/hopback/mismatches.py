"""Explain why a document does not match its type.

msgspec reports only the first problem, and neither the known names nor the allowed values.
"""

from __future__ import annotations

import re
from enum import Enum
from types import UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin

import msgspec

from hopback.text import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_PATH = re.compile(r"(?P<what>.*?)(?: - at `\$\.?(?P<path>.*)`)?", re.DOTALL)
_WORDS = {
    "int": "a whole number",
    "float": "a number",
    "str": "text",
    "bool": "true or false",
    "object": "an object",
    "array": "an array",
    "null": "null",
}
_TYPES = re.compile(r"(?:{0})(?: \| (?:{0}))*".format("|".join(_WORDS)))
_GOT_TYPE = re.compile(r", got \w+$")
# characters of an invalid value that are shown, to recognise it without showing a whole payload
_SHOWN = 80


class MismatchFinder:
    """Finds the wrong fields of documents. `shows_values` False hides values that may be secrets."""

    def __init__(
        self,
        *,
        strict: bool = True,
        decode: Callable[[type, Any], Any] | None = None,
        shows_values: bool = True,
    ) -> None:
        self._strict = strict
        self._decode = decode
        self._shows_values = shows_values

    def find(self, kind: Any, found: Any, at: str = "") -> Iterator[tuple[str, str]]:
        """Yield the path of each wrong field and the expected value."""
        kind, whole = _branch(kind, found), kind
        try:
            msgspec.convert(found, whole, strict=self._strict, dec_hook=self._decode)
        except msgspec.ValidationError as error:
            inside = list(self._inside(kind, found, at))
            yield from inside or [self._explain(str(error), kind, found, at)]

    def _inside(self, kind: Any, found: Any, at: str) -> Iterator[tuple[str, str]]:
        if isinstance(found, dict) and _is_struct(kind):
            yield from self._in_struct(kind, found, at)
        elif isinstance(found, dict) and (tags := _tags(kind)):
            [(name, known)] = tags.items()
            if found.get(name) not in known:
                yield _below(at, name), self._one_of(known, found.get(name))
        elif isinstance(found, list | tuple) and get_origin(kind) in (list, tuple):
            for number, each in enumerate(found):
                yield from self.find(get_args(kind)[0], each, f"{at}[{number}]")

    def _in_struct(self, kind: Any, found: dict[str, Any], at: str) -> Iterator[tuple[str, str]]:
        fields = {field.encode_name: field for field in msgspec.structs.fields(kind)}
        config = kind.__struct_config__
        for name, value in found.items():
            if name in fields:
                yield from self.find(fields[name].type, value, _below(at, name))
            elif config.forbid_unknown_fields and name != config.tag_field:
                known = f"one of {', '.join(fields)}" if fields else "no fields"
                yield _below(at, name), f"{known}{_got(name, fields)}"
        for name, field in fields.items():
            if field.required and name not in found:
                yield _below(at, name), "a value, got none"

    def _one_of(self, known: list[str], found: Any) -> str:
        got = _got(found, known) if self._shows_values else ""
        return f"one of {', '.join(known)}{got}"

    def _explain(self, text: str, kind: Any, found: Any, at: str) -> tuple[str, str]:
        """The message of msgspec as a path and the expected value."""
        match = _PATH.fullmatch(text)
        what, path = (text, "") if match is None else (match["what"], match["path"] or "")
        if not path and (known := _choices(kind)) and not isinstance(found, dict | list):
            return at, self._one_of(known, found)
        expected = what.removeprefix("Expected ").replace("`", "")
        if types := _TYPES.match(expected):
            words = " or ".join(_WORDS[name] for name in types[0].split(" | "))
            expected = words + expected[types.end() :]
        if not path and self._shows_values and not isinstance(found, dict | list):
            shown = f", got {found!r}"
            shown = f"{shown[:_SHOWN]}…" if len(shown) > _SHOWN else shown
            expected = _GOT_TYPE.sub("", expected) + shown
        return _below(at, path), expected


def _got(found: Any, known: Any) -> str:
    if found is None:
        return ", got none"
    hint = did_you_mean(found, known) if isinstance(found, str) else ""
    return f", got {found!r:.{_SHOWN}}{hint}"


def _below(at: str, name: str) -> str:
    return f"{at}.{name}" if at and name and not name.startswith("[") else f"{at}{name}"


def _is_struct(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)


def _members(kind: Any) -> tuple[Any, ...]:
    """The types of a union, without `Annotated`."""
    if get_origin(kind) is Annotated:
        return _members(get_args(kind)[0])
    if get_origin(kind) in (Union, UnionType):
        return tuple(each for one in get_args(kind) for each in _members(one))
    return (kind,)


def _branch(kind: Any, found: Any) -> Any:
    """The member of a union that the document means, or `kind` without `Annotated`."""
    members = _members(kind)
    if isinstance(found, dict):
        structs = [each for each in members if _is_struct(each)]
        for each in structs:
            config = each.__struct_config__
            if len(structs) == 1 or (config.tag and found.get(config.tag_field) == config.tag):
                return each
    if isinstance(found, list | tuple):
        return next((each for each in members if get_origin(each) in (list, tuple)), kind)
    return members[0] if len(members) == 1 else kind


def _tags(kind: Any) -> dict[str, list[str]]:
    """The tag field of a union of structs, with the tags of its members."""
    tags: dict[str, list[str]] = {}
    for each in _members(kind):
        if _is_struct(each) and each.__struct_config__.tag:
            config = each.__struct_config__
            tags.setdefault(config.tag_field, []).append(config.tag)
    return tags


def _choices(kind: Any) -> list[str]:
    """The values of an enumeration or literal type."""
    found: list[str] = []
    for each in _members(kind):
        if isinstance(each, type) and issubclass(each, Enum):
            found += [str(member.value) for member in each]
        elif get_origin(each) is Literal:
            found += [str(value) for value in get_args(each)]
    return found
