"""`hopback run`: finding the application, and the effect of the options."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click
import pytest

from hopback.cli.app import run
from hopback.cli.app_loading import load_app
from hopback.cli.exits import CommandFailed
from hopback.cli.options import HttpAddress
from hopback.cli.run_settings import RunSettings

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_APP = """
from hopback import App
app = App("shop")
other = App("other")
number = 5

@app.handler("orders", retry=["1s"])
async def handle(order: dict) -> None: ...
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty current directory. Modules imported from it are removed afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if not name.startswith("hopback"):
            del sys.modules[name]


@pytest.mark.parametrize(
    ("target", "name"),
    [("loaded_shop:app", "shop"), ("loaded_shop", "shop"), ("loaded_shop:other", "other")],
)
def test_application_is_loaded_from_current_directory(folder: Path, target: str, name: str) -> None:
    """The default attribute is `app`."""
    (folder / "loaded_shop.py").write_text(_APP)
    assert load_app(target).name == name


def test_application_is_loaded_from_package(folder: Path) -> None:
    (folder / "loaded_package").mkdir()
    (folder / "loaded_package" / "inner.py").write_text(_APP)
    assert load_app("loaded_package.inner:app").name == "shop"


@pytest.mark.parametrize(
    ("target", "code", "told"),
    [
        ("no_such_module:app", 5, "there is no module 'no_such_module'"),
        ("loaded_shop.inner:app", 5, "there is no module 'loaded_shop.inner'"),
        ("loaded_shop:nothing", 5, "expected an App as 'nothing' in loaded_shop, got nothing"),
        ("loaded_shop:number", 5, "got int"),
        ("loaded_shop.py", 2, "expected module:attribute"),
        ("loaded_shop.py:app", 2, "expected module:attribute"),
        ("./loaded_shop:app", 2, "expected module:attribute"),
        (":app", 2, "expected module:attribute"),
        ("loaded_broken:app", 1, "loaded_broken.py, line 2: ZeroDivisionError"),
        ("loaded_needy:app", 1, "ModuleNotFoundError: No module named 'no_such_library'"),
        ("loaded_syntax:app", 1, "loaded_syntax.py, line 1: SyntaxError"),
        ("loaded_waits:app", 1, "loaded_waits.py, line 3: queue 'orders': retry"),
        ("loaded_bare:app", 1, "loaded_bare.py, line 3: app.handler: queue: expected the name"),
    ],
)
def test_missing_module_attribute_or_library_is_reported(
    folder: Path, target: str, code: int, told: str
) -> None:
    (folder / "loaded_shop.py").write_text(_APP)
    (folder / "loaded_broken.py").write_text("\n1 / 0\n")
    (folder / "loaded_needy.py").write_text("import no_such_library\n")
    (folder / "loaded_syntax.py").write_text("def (:\n")
    begin = "from hopback import App\napp = App()\n"
    bare = f"{begin}@app.handler\nasync def handle(order): ...\n"
    (folder / "loaded_bare.py").write_text(bare)
    (folder / "loaded_waits.py").write_text(f"{begin}app.queue('orders', retry=['soon'])\n")
    with pytest.raises(CommandFailed) as caught:
        load_app(target)
    assert told in str(caught.value)
    assert caught.value.code == code


def test_missing_attribute_lists_existing_ones(folder: Path) -> None:
    (folder / "loaded_shop.py").write_text(_APP)
    with pytest.raises(CommandFailed) as caught:
        load_app("loaded_shop:nothing")
    assert caught.value.do == "It has: app, other. Name it as loaded_shop:NAME."


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("8080", ("127.0.0.1", 8080)),
        ("0", ("127.0.0.1", 0)),
        (":8080", ("127.0.0.1", 8080)),
        ("0.0.0.0:8080", ("0.0.0.0", 8080)),
        ("[::1]:8080", ("::1", 8080)),
        ("localhost:8080", ("localhost", 8080)),
    ],
)
def test_http_port_without_host_listens_on_loopback(text: str, address: tuple[str, int]) -> None:
    assert HttpAddress().convert(text, None, None) == address


@pytest.mark.parametrize("text", ["", "http", "localhost:", "1:99999", "-1", "::1:x", "a..b:80"])
def test_invalid_http_address_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter, match="expected PORT or HOST:PORT"):
        HttpAddress().convert(text, None, None)


def _settings(**change: object) -> RunSettings:
    settings: dict[str, object] = {
        "target": "shop:app",
        "broker": "amqp://user:secret@host/",
        "management": None,
        "queues": ("orders", "users"),
        "concurrency": 7,
        "processes": 3,
        "reload": False,
        "ownership": "check",
        "accept": ("some-rule",),
        "grace": 5.0,
        "http": ("127.0.0.1", 8080),
        "log_level": "debug",
        "log_format": "json",
        "otel": True,
    }
    return RunSettings(**{**settings, **change})  # type: ignore[arg-type]


def test_child_process_gets_all_options_and_no_password_in_arguments() -> None:
    """The broker URL is passed in the environment."""
    settings = _settings(management="http://user:secret@host/")
    command = settings.command(2, 9)
    assert "secret" not in " ".join(command)
    assert command[2:5] == ["hopback", "run", "shop:app"]
    assert {
        "--queue=orders",
        "--queue=users",
        "--concurrency=7",
        "--ownership=check",
        "--accept=some-rule",
        "--grace=5.0",
        "--log-level=debug",
        "--log-format=json",
        "--otel",
    } <= set(command)
    assert settings.environment()["HOPBACK_BROKER"] == "amqp://user:secret@host/"
    assert settings.environment()["HOPBACK_MANAGEMENT"] == "http://user:secret@host/"


def test_each_process_has_its_own_port() -> None:
    """Port 0 stays 0."""
    ports = [_option(_settings().command(number, 9), "--http") for number in range(3)]
    assert ports == ["127.0.0.1:8080", "127.0.0.1:8081", "127.0.0.1:8082"]
    assert _option(_settings(http=("127.0.0.1", 0)).command(2, 9), "--http") == "127.0.0.1:0"


def _option(command: list[str], name: str) -> str:
    return next(one.partition("=")[2] for one in command if one.startswith(f"{name}="))


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--processes", "0", "--broker", "embedded"], "--processes"),
        (["--concurrency", "0", "--broker", "embedded"], "--concurrency"),
        (["--concurrency", "many", "--broker", "embedded"], "'many' is not a valid whole number"),
        (
            ["--accept", "at-most-onse", "--broker", "embedded"],
            "expected a rule that `hopback topology check` reports, got 'at-most-onse'"
            " (did you mean at-most-once?)",
        ),
        (["--http", "http", "--broker", "embedded"], "expected PORT or HOST:PORT"),
        (["--grace", "soon", "--broker", "embedded"], "expected a duration like 250ms, 30s"),
        (["--grace", "-1", "--broker", "embedded"], "expected 0 s or more, got '-1'"),
        (["--broker", "ftp://host/"], "--broker"),
        ([], "--broker"),
    ],
    ids=str,
)
def test_invalid_run_options_exit_with_2(
    folder: Path,
    options: list[str],
    told: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("HOPBACK_BROKER", raising=False)
    (folder / "loaded_shop.py").write_text(_APP)
    assert run(["run", "loaded_shop:app", *options]) == 2
    assert told in capsys.readouterr().err


def test_run_refuses_queue_without_handler(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "loaded_shop.py").write_text(_APP)
    assert run(["run", "loaded_shop:app", "--broker", "embedded", "--queue", "order"]) == 2
    assert "loaded_shop:app, got 'order'\nName one of orders." in capsys.readouterr().err


_PACKAGE = {
    "__init__.py": "from hopback import App\napp = App('shop')\n",
    "orders.py": "from discovered import app\n"
    "@app.handler('orders', retry=None)\nasync def handle(order: dict) -> None: ...\n",
    "parts/__init__.py": "",
    "parts/mails.py": "from hopback import Router\nfrom discovered import app\n"
    "router = Router('mails.')\n"
    "@router.handler('new', retry=None)\nasync def mail(order: dict) -> None: ...\n"
    "app.include(router)\n",
    "parts/daily.py": "from discovered import app\n"
    "@app.every('1h')\nasync def report() -> None: ...\n",
    "parts/forgotten.py": "from hopback import Router\nrouter = Router('forgotten.')\n",
    "__main__.py": "raise SystemExit('a script: app.handler')\n",
    "script.py": "raise SystemExit('a script')\n",
    "test_orders.py": "raise SystemExit('a test: app.handler')\n",
}


def test_run_imports_modules_of_package_that_declare_handlers_or_periodic_messages(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Scripts and tests are not imported. A router that is not included is named."""
    for name, text in _PACKAGE.items():
        path = folder / "discovered" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert list(load_app("discovered:app").handlers) == ["orders", "report", "mails.new"]
    told = capsys.readouterr().err
    assert told == (
        "discovered.parts.forgotten.router is included in no application: "
        "its handlers do not run.\n"
    )


def test_broken_module_of_package_is_named_with_file_and_line(folder: Path) -> None:
    (folder / "broken").mkdir()
    (folder / "broken" / "__init__.py").write_text(_PACKAGE["__init__.py"])
    (folder / "broken" / "orders.py").write_text("import missing  # app.handler\n")
    with pytest.raises(CommandFailed, match=r"orders.py, line 1: .*missing"):
        load_app("broken:app")


def test_run_refuses_application_without_handlers(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It would be ready at once and never handle a message."""
    (folder / "loaded_empty.py").write_text("from hopback import App\napp = App('shop')\n")
    assert run(["run", "loaded_empty:app", "--broker", "embedded"]) == 2
    told = capsys.readouterr().err
    assert "app 'shop' of loaded_empty:app has no handlers" in told
    assert "import these modules in loaded_empty" in told
