"""The page about the runtime lists what there is."""

from __future__ import annotations

import inspect
from dataclasses import fields
from pathlib import Path

from hopback import App, Context, ServiceOptions
from hopback.observe.events import EVENTS

PAGE = (Path(__file__).parents[3] / "docs/reference/runtime.md").read_text(encoding="utf-8")


def test_every_event_is_listed_with_its_fields() -> None:
    """The table on the page is the table in the code."""
    rows = [
        f"| `{kind.name}` | {kind.when} | {', '.join(f'`{field}`' for field in kind.fields)} |"
        for kind in EVENTS.values()
    ]
    assert [row for row in rows if row not in PAGE] == []


def test_every_option_is_listed() -> None:
    """Options of handlers, batches, push and the service, and what a context offers."""
    names = [field.name for field in fields(ServiceOptions)]
    for declare in (App.queue, App.handler, App.batch, App.push):
        names += [name for name in inspect.signature(declare).parameters if name != "self"]
    names += [name for name in vars(Context) if not name.startswith("_")]
    missing = [name for name in names if f"`{name}" not in PAGE and f"{name}=" not in PAGE]
    assert [name for name in missing if name not in ("name", "queue", "url")] == []
