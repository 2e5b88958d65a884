"""Errors for missing extras name the extra and the command to install it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from typing import TYPE_CHECKING

import click
import pytest

from hopback.broker.server import ServerSettings
from hopback.cli.app import dlq, root, topology
from hopback.testing.threads import BrokerThread

if TYPE_CHECKING:
    from pathlib import Path

# As if the library were missing: the import raises Python's error.
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
def test_library_error_names_missing_extra(program: str, library: str, extra: str) -> None:
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
        (["run", "hopback.systems.file_pipeline.parts:thumbnail", *_EMBEDDED], "PIL", "systems"),
        (["run", "traced:app", *_EMBEDDED, "--otel"], "opentelemetry", "tracing"),
        # The application's own module is not to blame.
        (["run", "shop:app", *_EMBEDDED], "psycopg", "postgres"),
    ],
)
def test_command_error_names_missing_extra(
    tmp_path: Path, arguments: list[str], library: str, extra: str
) -> None:
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


_BASE = "hopback click msgspec rich markdown_it mdurl pygments tomli_w"
"""The packages that `pip install hopback` installs."""

_BARE = """
import json, shlex, sys
from importlib.abc import MetaPathFinder

base = {"shop", *sys.argv[1].split(), *sys.stdlib_module_names}

class OnlyBase(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if not name.startswith("_") and name.partition(".")[0] not in base:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, OnlyBase())
from hopback.cli.app import run
for line in sys.stdin.read().splitlines():
    print(f"### {line}", file=sys.stderr, flush=True)
    run(shlex.split(line))
"""

_COMMANDS = {
    # Each command in an installation without extras, with the extra that its error names.
    "init new": "",
    "run missing:app --broker embedded": "",
    "publish orders {} --broker URL": "",
    "pause orders --http 1": "",
    "resume orders --http 1": "",
    "dlq ls --broker URL": "ops",
    "dlq show q --broker URL": "ops",
    "dlq groups q --broker URL": "ops",
    "dlq peek q --broker URL": "ops",
    "dlq get q 1 --broker URL": "ops",
    "dlq errors --broker URL": "ops",
    "dlq search word --broker URL": "ops",
    "dlq export q --broker URL": "ops",
    "dlq import empty --to q --yes --broker URL": "ops",
    "dlq redrive q --reason x --yes --broker URL": "ops",
    "dlq discard q --reason x --yes --broker URL": "ops",
    "dlq edit q 1 --reason x --yes --without h --broker URL": "ops",
    "dlq restore-limit q --reason x --yes --broker URL": "ops",
    "dlq watch --times 1 --broker URL": "ops",
    "dlq notes q --broker URL": "ops",
    "dlq history q --broker URL": "ops",
    "dlq filters q --broker URL": "ops",
    "dlq candidates --broker URL": "ops",
    "dlq add q --broker URL": "ops",
    "dlq ignore q --broker URL": "ops",
    "dlq forget q --broker URL": "ops",
    "jobs ls": "",
    "serve --broker URL": "ops",
    "alerts ls": "",
    "audit": "",
    "topology show raffle": "",
    "topology check raffle": "",
    "topology export raffle": "",
    "topology diagram raffle": "",
    "topology plan raffle --broker URL": "management",
    "topology apply raffle --broker URL": "management",
    "topology migrate raffle --broker URL": "management",
    "topology revert --yes --broker URL": "management",
    "simulate raffle --queue raffle_queue --fail 1": "",
    "rehearse raffle --rate 5/s --outage 1m": "",
    "doctor --broker URL": "management",
    "adopt q --broker URL": "ops",
    "store status --database sqlite:///x.db": "store",
    "broker --port 99999": "",
    "celery check shop:app": "celery",
    "demo raffle": "systems",
    "systems": "",
}


def test_command_without_extras_works_or_names_extra(tmp_path: Path) -> None:
    names = set(root.list_commands(click.Context(root))) - {"topology", "dlq"}
    for name, group in (("topology", topology), ("dlq", dlq)):
        names |= {f"{name} {each}" for each in group.list_commands(click.Context(group))}
    covered = {
        name for name in names if any(f"{line} ".startswith(f"{name} ") for line in _COMMANDS)
    }
    assert covered == names
    (tmp_path / "shop.py").write_text("from celery import Celery\napp = Celery()\n")
    (tmp_path / "empty").touch()
    with BrokerThread(ServerSettings(port=0, http_port=0)) as broker:
        url = f"{broker.url} --management {broker.server.http_url}"
        lines = [
            line.replace("URL", broker.url if line.startswith("publish") else url)
            for line in _COMMANDS
        ]
        ran = subprocess.run(
            [sys.executable, "-c", _BARE, _BASE],
            cwd=tmp_path,
            env={**os.environ, "HOME": str(tmp_path), "XDG_STATE_HOME": str(tmp_path)},
            input="\n".join(lines),
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
    assert "Traceback" not in ran.stderr
    told = re.split("^### .*\n", ran.stderr, flags=re.MULTILINE)[1:]
    assert len(told) == len(_COMMANDS)
    named = [re.findall(r"pip install 'hopback\[([\w-]+)\]'", each) for each in told]
    expected = [[extra] if extra else [] for extra in _COMMANDS.values()]
    assert dict(zip(_COMMANDS, named, strict=True)) == dict(zip(_COMMANDS, expected, strict=True))


def test_first_screen_works_without_extras(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(
        "from hopback import App\napp = App('shop')\n"
        "@app.handler('orders', retry=['30s', '5m'])\n"
        "async def handle(order: dict) -> None: print('order', order['id'], flush=True)\n"
    )
    bare = [sys.executable, "-c", _BARE, _BASE]
    with subprocess.Popen(
        bare,
        cwd=tmp_path,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as running:
        assert running.stderr is not None
        assert running.stdin is not None
        assert running.stdout is not None
        running.stdin.write("run shop:app --broker embedded")
        running.stdin.close()
        try:
            assert "in memory" in running.stdout.readline()
            assert "hopback publish orders" in running.stdout.readline()
            while "consumer.started" not in running.stderr.readline():
                pass
            lines = "simulate shop:app --queue orders --fail 1\ntopology check shop:app\n"
            lines += "publish orders '{\"id\": 7}'\n"
            ran = subprocess.run(
                bare, cwd=tmp_path, input=lines, capture_output=True, text=True, check=True
            )
            assert "not installed" not in ran.stderr
            assert "No findings." in ran.stdout
            assert ran.stdout.endswith("1 message confirmed for orders.\n"), ran.stderr
            assert running.stdout.readline() == "order 7\n"
        finally:
            running.terminate()


def test_missing_module_of_user_is_not_an_extra(tmp_path: Path) -> None:
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
