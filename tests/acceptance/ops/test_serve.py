"""`hopback serve` as installed: its page, its login link, its signals."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import zipfile
from contextlib import contextmanager
from typing import TYPE_CHECKING

import httpx

from tests.acceptance.running import running

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.acceptance.conftest import Installed

_PATIENCE_S = 30
_SHOP = """
from hopback import App
app = App("shop")

@app.handler("orders", retry=["1s"])
async def handle(order: dict) -> None: ...
"""


@contextmanager
def _run_server(
    installed: Installed, folder: Path, *arguments: str
) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [str(installed.command), "serve", "--store", "memory", "--http", "0", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONUNBUFFERED": "1", "XDG_STATE_HOME": str(folder)},
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def _told(process: subprocess.Popen[str], pattern: str) -> str:
    """Return the first line of stderr that matches."""
    assert process.stderr is not None
    for line in process.stderr:
        found = re.search(pattern, line)
        if found:
            return found.group(1)
    raise AssertionError(f"no line of the output matches {pattern}")


def test_wheel_contains_templates_styles_and_vendored_scripts(installed: Installed) -> None:
    with zipfile.ZipFile(installed.wheel) as archive:
        names = set(archive.namelist())
    for name in (
        "templates/layout.html", "static/page.css", "static/page.js", "static/vendor/manifest.toml",
        "static/vendor/htmx.min.js", "static/vendor/cytoscape.LICENSE.txt",
    ):  # fmt: skip
        assert f"hopback/ops/page/{name}" in names


def test_dev_mode_signs_in_by_link_and_exits_with_0_on_sigterm(
    installed: Installed, tmp_path: Path
) -> None:
    """The service shows the queues of the embedded broker that runs in its directory."""
    (tmp_path / "shop.py").write_text(_SHOP)
    with running(installed, tmp_path, "shop:app", "--broker", "embedded") as shop:
        shop.until(lambda: shop.said("consumer.started"))
        with _run_server(installed, tmp_path, "--broker", "embedded", "--dev") as process:
            link = _told(process, r"Sign in: (http://\S+)")
            base = link.partition("/login")[0]
            with httpx.Client(base_url=base, timeout=_PATIENCE_S) as client:
                assert client.get("/").headers["location"].startswith("/login")
                assert client.get("/login?token=wrong").status_code == 401
                assert client.get(link).status_code == 303
                page = client.get("/")
                assert (page.status_code, "orders.dlq" in page.text) == (200, True)
                style = client.get("/static/page.css")
                assert client.get(
                    "/static/page.css", headers={"If-None-Match": style.headers["etag"]}
                ).status_code == 304  # fmt: skip
            process.send_signal(signal.SIGTERM)
            assert process.wait(_PATIENCE_S) == 0


def test_service_starts_without_broker_and_reports_not_ready(
    installed: Installed, tmp_path: Path
) -> None:
    away = ("--broker", "amqp://guest:guest@127.0.0.1:1/", "--amqp-only")
    with _run_server(installed, tmp_path, *away) as process:
        base = _told(process, r"Serving (http://\S+)")
        assert httpx.get(f"{base}healthz", timeout=_PATIENCE_S).status_code == 200
        assert httpx.get(f"{base}readyz", timeout=_PATIENCE_S).status_code == 503


def test_invalid_settings_exit_with_1_before_serving(installed: Installed, tmp_path: Path) -> None:
    (tmp_path / "admin.toml").write_text('[auth.jwt]\nissuer = "i"\naudience = "a"\n')
    ran = installed.run(
        "serve", "--broker", "amqp://127.0.0.1:1/", "--config", "admin.toml", cwd=tmp_path
    )
    assert ran.returncode == 1
    assert "expected either jwks_url or secret_env" in ran.stderr
