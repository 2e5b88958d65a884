"""The examples work as documented: their tests pass, also on PostgreSQL, and they stay small."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from tests.docs.pages import blocks

if TYPE_CHECKING:
    from tests.harness.shared import SharedPostgres

_ORDERS = Path(__file__).parents[2] / "examples" / "orders"


def test_orders_example_passes_its_tests_on_postgresql(postgres: SharedPostgres) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests"],
        cwd=_ORDERS,
        env={
            **os.environ,
            "DATABASE_URL": postgres.create_database(),
            "PYTHONDONTWRITEBYTECODE": "1",
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "6 passed" in ran.stdout


def test_commands_of_orders_example_work(postgres: SharedPostgres, tmp_path: Path) -> None:
    """Ports, database and clock are those of the test."""
    amqp, http, web, nobody = _free_ports(4)
    (block,) = (one for one in blocks((_ORDERS / "README.md").read_text()) if one.language == "sh")
    script = block.text
    for written, meant in (
        ("python -m pytest ", ": "),  # played above
        ("hopback broker &", f"hopback broker --port {amqp} --http {http} --clock virtual &"),
        ("amqp://guest:guest@localhost ", f"amqp://guest:guest@localhost:{amqp} "),
        ("localhost:8090", f"localhost:{nobody}"),
        ("postgresql://user:password@localhost/shop", postgres.create_database()),
        ("uvicorn orders.web:web &", f"uvicorn orders.web:web --port {web} &"),
        ("localhost:8000", f"localhost:{web}"),
    ):
        assert written in script, written
        script = script.replace(written, meant)
    # A reader waits for startup and retries. Here the clock is advanced.
    curl = "curl -sS --fail --retry 60 --retry-delay 1 --retry-all-errors"
    began, end = script.index("curl "), script.index("hopback dlq ls")
    clock = (
        f"{curl} -u guest:guest http://localhost:{http}/clock/advance -d '{{\"seconds\": 61}}' >&2"
    )
    tries = f"""
    for try in $(seq 60); do
        {clock}
        hopback dlq ls | grep '"queue":"charges.wanted.dlq".*"messages":1,' && break
        sleep 0.5
    done
    kill %2 %3
    wait %2 %3
    kill %1
    wait
    """
    script = script[:began] + curl + script[began + len("curl") : end] + "\n" + tries
    ran = subprocess.run(
        ["bash", "-c", f"set -u\n{script}"],
        cwd=_ORDERS,
        env={
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "PYTHONDONTWRITEBYTECODE": "1",
            "HOPBACK_MANAGEMENT": f"http://guest:guest@localhost:{http}",
            "XDG_STATE_HOME": str(tmp_path),
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=180,
    )
    told = ran.stdout + ran.stderr
    assert '{"id":7,"customer":"Ada","cents":950}' in ran.stdout, told
    assert '"queue":"charges.wanted.dlq"' in ran.stdout, told


def _free_ports(number: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [
            stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(number)
        ]
        return [one.getsockname()[1] for one in sockets]


def test_orders_example_has_the_documented_number_of_lines() -> None:
    lines = sum(len(one.read_text().splitlines()) for one in _ORDERS.glob("orders/*.py"))
    assert f"in {lines} lines" in (_ORDERS / "README.md").read_text()
    assert lines < 180
