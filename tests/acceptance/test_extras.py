"""What somebody is told who has not installed the extra: which one it is, as a line to type."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

# As if the library were not there: importing it raises what Python raises for a missing one.
_WITHOUT = "import sys; sys.modules[sys.argv[1]] = None\n"
_COMMAND = _WITHOUT + "from hopback.cli.app import run; sys.exit(run(sys.argv[2:]))"
_EMBEDDED = ("--broker", "embedded")
_MANAGEMENT = (
    "from hopback.broker.management import Management, ManagementAddress;"
    " Management(ManagementAddress.derive('amqp://h'))"
)
_POSTGRES = "postgresql://nobody@localhost/none"


@pytest.mark.parametrize(
    ("program", "library", "extra"),
    [
        ("import hopback.store", "sqlalchemy", "store"),
        (
            "from hopback.store import open_database; open_database('sqlite://')",
            "aiosqlite",
            "store",
        ),
        (
            f"from hopback.store import open_database; open_database('{_POSTGRES}')",
            "psycopg",
            "postgres",
        ),
        ("import hopback.ops.http", "starlette", "ops"),
        ("import hopback.ops.http", "jwt", "ops"),
        ("import hopback.observe.metrics", "prometheus_client", "metrics"),
        ("import hopback.runtime.tracing", "opentelemetry", "tracing"),
        (_MANAGEMENT, "httpx", "management"),
        ("import hopback.integrations.faststream", "faststream", "faststream"),
        ("import hopback.integrations.aio_pika", "aio_pika", "aio-pika"),
        ("import hopback.integrations.pika", "pika", "pika"),
        ("import hopback.integrations.celery", "celery", "celery"),
        (
            "from hopback.ops.messages.archive import check_writable; check_writable('x.jsonl.zst')",
            "zstandard",
            "zstd",
        ),
    ],
)
def test_the_library_names_the_extra(program: str, library: str, extra: str) -> None:
    """An ImportError as before, and one of ours: its words are the line to type."""
    catching = (
        f"from hopback.errors import HopbackError\ntry:\n    {program}\n"
        "except HopbackError as error:\n    assert isinstance(error, ImportError)\n    print(error)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", _WITHOUT + catching, library],
        capture_output=True,
        text=True,
        check=True,
    )
    line = f"needs {library}, which is not installed: pip install 'hopback[{extra}]'\n"
    assert ran.stdout.endswith(line)


@pytest.mark.parametrize(
    ("arguments", "library", "extra"),
    [
        (["serve", "--broker", "amqp://h"], "msgspec", "ops"),
        (["demo", "raffle"], "starlette", "systems"),
        (["store", "status", "--database", "sqlite:///x.db"], "sqlalchemy", "store"),
        (["store", "status", "--database", _POSTGRES], "psycopg", "postgres"),
        (["dlq", "ls", "--server", "http://h"], "httpx", "ops"),
        (["run", "hopback.systems.file_pipeline.thumbnail:app", *_EMBEDDED], "PIL", "systems"),
        (["run", "traced:app", *_EMBEDDED, "--otel"], "opentelemetry", "tracing"),
        # The application's own module is not to blame.
        (["run", "shop:app", *_EMBEDDED], "psycopg", "postgres"),
    ],
)
def test_the_command_names_the_extra(
    tmp_path: Path, arguments: list[str], library: str, extra: str
) -> None:
    """In words, without a traceback, and without advice to repair anything."""
    (tmp_path / "traced.py").write_text(
        "from hopback import App\napp = App('traced')\n"
        "@app.handler('q', retry=None)\nasync def handle(order: dict) -> None: ...\n"
    )
    (tmp_path / "shop.py").write_text(
        "from hopback import App\nfrom hopback.store import open_database\n"
        f"engine = open_database('{_POSTGRES}')\napp = App('shop')\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", _COMMAND, library, *arguments],
        cwd=tmp_path,
        env={**os.environ, "HOME": str(tmp_path), "DATABASE_URL": f"sqlite:///{tmp_path}/x.db"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert ran.returncode == 1, ran.stderr
    assert f"needs {library}, which is not installed: pip install 'hopback[{extra}]'" in ran.stderr
    assert "Traceback" not in ran.stderr
    assert "Correct" not in ran.stderr


def test_a_module_of_the_users_own_that_is_missing_is_no_extra(tmp_path: Path) -> None:
    """What their module imports is theirs to install."""
    (tmp_path / "shop.py").write_text("import no_such_library\n")
    ran = subprocess.run(
        [sys.executable, "-c", _COMMAND, "nothing", "run", "shop:app", "--broker", "embedded"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert "shop cannot be imported" in ran.stderr
    assert "pip install" not in ran.stderr
