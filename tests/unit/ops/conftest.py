"""Every test of the service also checks that no request blocks its event loop."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from hopback.ops.http.lifespan import compile_pages
from hopback.ops.page.rendering import renderer
from tests.harness.loop_watch import watch_loops

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session", autouse=True)
def _compiled_pages() -> None:
    """A service compiles its pages in a thread when it starts. The first request of a test would do it."""
    compile_pages(renderer())


@pytest.fixture(autouse=True)
def no_request_blocks_the_loop() -> Iterator[None]:
    """Fail a test in which a callback of the loop computed for more than half a second."""
    with watch_loops() as found:
        yield
    assert found == []
