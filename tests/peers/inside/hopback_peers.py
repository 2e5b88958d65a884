"""A pytest plugin for the suites: it records results and excludes tests.

It runs in the suites' Python environment and does not import this project. HOPBACK_PEERS names a
JSON file with `left_out` (parts of names) and `results`, the file to write.
"""

from __future__ import annotations

import importlib
import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

_REQUEST = json.loads(Path(os.environ["HOPBACK_PEERS"]).read_text())
_outcomes: dict[str, str] = {}
_words: dict[str, str] = {}


def pytest_collection_modifyitems(config: Any, items: list[Any]) -> None:
    """Deselect excluded tests."""
    excluded = [item for item in items if any(part in item.nodeid for part in _REQUEST["left_out"])]
    config.hook.pytest_deselected(items=excluded)
    items[:] = [item for item in items if item not in excluded]


def pytest_fixture_setup(fixturedef: Any, request: Any) -> Any:
    """Disable the memory tracer: it measures the client's memory and fails under load."""
    if fixturedef.argname == "memory_tracer":
        fixturedef.cached_result = (None, fixturedef.cache_key(request), None)
        return True
    return None


@pytest.fixture(scope="session")
def rabbitmq_container() -> Any:
    """Return the running broker. The source package of aiormq lacks this fixture."""
    return SimpleNamespace(host="127.0.0.1", ports={"5672/tcp": 5672, "5671/tcp": 5671})


@pytest.fixture(scope="session")
def amqp_direct_url() -> Any:
    """Return the URL of the running broker. The source package of aiormq lacks this fixture."""
    return importlib.import_module("yarl").URL("amqp://guest:guest@127.0.0.1:5672//")


def pytest_runtest_logreport(report: Any) -> None:
    """Record the worst outcome of a test's three phases. A rerun replaces the earlier outcome."""
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
    """Write the results even if no test ran."""
    _write()


def _write() -> None:
    Path(_REQUEST["results"]).write_text(json.dumps({"outcomes": _outcomes, "words": _words}))
