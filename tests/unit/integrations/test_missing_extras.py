"""Without a library, the integration names the extra that installs it."""

from __future__ import annotations

import sys
from importlib import import_module

import pytest

from hopback.errors import MissingExtra


@pytest.mark.parametrize(
    ("integration", "extra", "libraries"),
    [
        ("aio_pika", "aio-pika", ("aio_pika",)),
        ("faststream", "faststream", ("aio_pika", "faststream")),
        ("pika", "pika", ("pika",)),
    ],
)
def test_integration_without_its_library_names_its_own_extra(
    integration: str, extra: str, libraries: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """FastStream's integration imports that of aio-pika, which has another extra."""
    for name in list(sys.modules):
        if name.split(".")[0] in libraries or name.startswith("hopback.integrations."):
            monkeypatch.delitem(sys.modules, name)
    for library in libraries:
        monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(MissingExtra, match=rf"pip install 'hopback\[{extra}\]'"):
        import_module(f"hopback.integrations.{integration}")
