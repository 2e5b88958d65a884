"""The page about the runtime is complete."""

from __future__ import annotations

import inspect
from dataclasses import fields
from pathlib import Path

from hopback import App, Context, ServiceOptions

PAGE = (Path(__file__).parents[3] / "docs/reference/runtime.md").read_text(encoding="utf-8")


def test_every_runtime_option_is_documented() -> None:
    names = [field.name for field in fields(ServiceOptions)]
    for declare in (App.queue, App.handler, App.batch, App.push):
        names += [name for name in inspect.signature(declare).parameters if name != "self"]
    names += [name for name in vars(Context) if not name.startswith("_")]
    missing = [name for name in names if f"`{name}" not in PAGE and f"{name}=" not in PAGE]
    assert [name for name in missing if name not in ("name", "queue", "url")] == []
