"""The options of a job. They are read from the fields of its request, where they are defined.

A field is an option if its type has an `option`. Its type, default, limits and text are used to
validate requests, and to derive the API schema, the command option, the form field and the row in
the reference.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

from msgspec import Meta, Struct, inspect, structs

StructT = TypeVar("StructT", bound=Struct)

_TYPES: dict[type, type] = {
    inspect.IntType: int,
    inspect.FloatType: float,
    inspect.StrType: str,
    inspect.BoolType: bool,
}


def option(flag: str, metavar: str, text: str, **more: Any) -> Meta:
    """Describe an option. `more` overrides derived properties of the `JobOption`, for example `least`."""
    return Meta(description=text, extra={"flag": flag, "metavar": metavar, "text": text, **more})


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOption:
    """An option of a job."""

    name: str
    """The name of the field."""
    owner: str
    """The field of the request that contains this one, for example `pace`. It is empty for fields
    of the request itself.
    """
    json: str
    """The name of the field in JSON, without the name of its owner."""
    flag: str
    metavar: str
    text: str
    kind: type
    """int, float, str or bool. If it is object, commands and forms parse the option themselves."""
    default: Any
    least: int | None = None
    """The minimum. If `is_above` is True, the value must be higher than it."""
    most: int | None = None
    is_above: bool = False
    redrive_only: bool = False

    @property
    def is_decimal(self) -> bool:
        return self.kind is float

    @property
    def bounds_text(self) -> str:
        """Describe the allowed values."""
        if self.kind not in (int, float):
            return ""
        start = f"a number {'above' if self.is_above else 'from'} {self.least:,.0f}"
        return start if self.most is None else f"{start} to {self.most:,.0f}"


@cache
def options_of(kind: type[Struct]) -> tuple[JobOption, ...]:
    """Return the options of a request or of a part of it."""
    return tuple(_options(inspect.type_info(kind), ""))


def _options(struct: Any, owner: str) -> list[JobOption]:
    found = []
    for field in struct.fields:
        kind, extra = _unwrap(field.type)
        if "flag" in extra:
            bounds = {
                "least": getattr(kind, "ge", None),
                "most": getattr(kind, "le", None),
            }
            if getattr(kind, "gt", None) is not None:
                bounds |= {"least": kind.gt, "is_above": True}
            default = "" if field.required else field.default
            described = {
                "name": field.name,
                "owner": owner,
                "json": field.encode_name,
                "kind": _TYPES.get(type(kind), object),
                "default": default,
                **bounds,
                **extra,
            }
            found.append(JobOption(**described))
        elif isinstance(kind, inspect.StructType) and not owner:
            found += _options(kind, field.name)
    return found


def _unwrap(kind: Any) -> tuple[Any, dict[str, Any]]:
    """Remove the metadata and None from a type. Returns it with the description of its option."""
    extra: dict[str, Any] = {}
    while isinstance(kind, inspect.Metadata | inspect.UnionType):
        if isinstance(kind, inspect.Metadata):
            kind, extra = kind.type, extra | (kind.extra or {})
        else:
            kind = next(one for one in kind.types if not isinstance(one, inspect.NoneType))
    return kind, extra


def with_options(kind: type[StructT], given: dict[str, Any], **further: Any) -> StructT:
    """Create a request from options by name and other fields."""
    parts: dict[str, dict[str, Any]] = {"": further}
    for each in options_of(kind):
        if each.name in given:
            parts.setdefault(each.owner, {})[each.name] = given[each.name]
    defaults = {field.name: field.default for field in structs.fields(kind)}
    own = parts.pop("")
    own |= {name: structs.replace(defaults[name], **values) for name, values in parts.items()}
    return kind(**own)
