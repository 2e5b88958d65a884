"""A pytest plugin for the suites of others: takes down results, leaves out what cannot run here.

It runs in the suites' own Python and imports nothing of this project. HOPBACK_PEERS names a JSON file
with `left_out` (parts of names) and `results`, the file to write.
"""

from __future__ import annotations

import importlib
import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

_ASKED = json.loads(Path(os.environ["HOPBACK_PEERS"]).read_text())
_outcomes: dict[str, str] = {}
_words: dict[str, str] = {}


def pytest_collection_modifyitems(config: Any, items: list[Any]) -> None:
    """Leave out by name."""
    unwanted = [item for item in items if any(part in item.nodeid for part in _ASKED["left_out"])]
    config.hook.pytest_deselected(items=unwanted)
    items[:] = [item for item in items if item not in unwanted]


def pytest_fixture_setup(fixturedef: Any, request: Any) -> Any:
    """The watch for leaks of the client's own memory is not about brokers, and trips under load."""
    if fixturedef.argname == "memory_tracer":
        fixturedef.cached_result = (None, fixturedef.cache_key(request), None)
        return True
    return None


@pytest.fixture(scope="session")
def rabbitmq_container() -> Any:
    """The broker that is there. aiormq's own fixture is not in its source package."""
    return SimpleNamespace(host="127.0.0.1", ports={"5672/tcp": 5672, "5671/tcp": 5671})


@pytest.fixture(scope="session")
def amqp_direct_url() -> Any:
    """Its address; as above."""
    return importlib.import_module("yarl").URL("amqp://guest:guest@127.0.0.1:5672//")


def pytest_runtest_logreport(report: Any) -> None:
    """The worst of a test's three parts; the last run of one that is tried again."""
    if report.outcome == "rerun":
        _outcomes.pop(report.nodeid, None)
        return
    if report.when == "setup" or report.outcome == "failed":
        _outcomes[report.nodeid] = report.outcome
    elif report.outcome == "skipped":
        _outcomes[report.nodeid] = "skipped"
    if report.outcome == "failed":
        _words[report.nodeid] = str(report.longrepr)[-1500:]
    _write()


def pytest_sessionfinish() -> None:
    """Also where nothing ran."""
    _write()


def _write() -> None:
    Path(_ASKED["results"]).write_text(json.dumps({"outcomes": _outcomes, "words": _words}))
