"""RabbitMQ version numbers."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Self

_FORM = re.compile(r"(\d{1,4})(?:\.(\d{1,4}|x))?(?:\.(\d{1,6}))?(?:[-+~.].*)?\Z", re.ASCII)


@dataclass(frozen=True, slots=True, order=True)
class BrokerVersion:
    """A RabbitMQ version. Versions can be compared, as in `version >= V4_0`."""

    major: int
    minor: int = 0
    patch: int = 0

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a version such as `4.0`, `3.10.8` or `3.x`.

        Raises:
            ValueError: If the text is not a version.
        """
        found = _FORM.match(text.strip())
        if found is None:
            raise ValueError(f"expected a broker version like 3.10, 4.0 or 4.3.1, got {text!r}")
        major, minor, patch = found.groups()
        return cls(int(major), 0 if minor in (None, "x") else int(minor), int(patch or 0))

    def __str__(self) -> str:
        tail = f".{self.patch}" if self.patch else ""
        return f"{self.major}.{self.minor}{tail}"
