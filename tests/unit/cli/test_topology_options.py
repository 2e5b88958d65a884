"""The topology that a command works on: a system, a file or an application."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
import pytest

from hopback.cli.exits import CommandFailed, Exit
from hopback.cli.topology_options import TopologySource
from hopback.designs import DESIGNS
from hopback.errors import InvalidTopology
from hopback.topology.document import write_toml

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("name", DESIGNS)
def test_system_is_built_by_name_in_both_forms(name: str) -> None:
    assert TopologySource(name).topology() == DESIGNS[name].build()
    assert TopologySource(name, hardened=True).topology() == DESIGNS[name].build(hardened=True)


def test_param_option_changes_design() -> None:
    topology = TopologySource("ratatoskr", params=(("queue", "shop.events"),)).topology()
    assert topology.queue("shop.events.retry") is not None


def test_invalid_parameter_is_usage_error() -> None:
    with pytest.raises(CommandFailed, match=r"params\.max_retries") as caught:
        TopologySource("raffle", params=(("max_retries", "many"),)).topology()
    assert caught.value.code is Exit.USAGE
    assert "hopback systems raffle" in caught.value.do


def test_toml_file_is_read_with_and_without_bom(tmp_path: Path) -> None:
    raffle = DESIGNS["raffle"].build()
    path = tmp_path / "raffle.toml"
    path.write_text(write_toml(raffle), encoding="utf-8-sig")
    assert TopologySource(str(path)).topology() == raffle


def test_missing_file_and_module_without_app_name_are_explained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CommandFailed, match=r"there is no file 'shop\.toml' in /"):
        TopologySource("shop.toml").topology()
    (tmp_path / "shop.py").write_text("")
    with pytest.raises(CommandFailed) as caught:
        TopologySource("shop").topology()
    assert caught.value.do.startswith("Did you mean shop:app? ")


def test_invalid_definitions_are_reported_with_file_and_place(tmp_path: Path) -> None:
    path = tmp_path / "bad.json"
    path.write_text('{"queues": [}')
    with pytest.raises(InvalidTopology) as caught:
        TopologySource(str(path)).topology()
    assert "bad.json has 1 problem" in str(caught.value)
    assert "line 1, column 13: expected valid JSON, got a syntax error: " in str(caught.value)


def test_design_options_are_refused_for_file(tmp_path: Path) -> None:
    path = tmp_path / "own.toml"
    path.write_text("")
    with pytest.raises(click.UsageError, match="--hardened is for a documented system"):
        TopologySource(str(path), hardened=True).topology()
    with pytest.raises(click.UsageError, match="--param is for a documented system"):
        TopologySource(str(path), params=(("a", "b"),)).topology()


@pytest.mark.parametrize("name", ["nothing", "nothing.toml", "no/such/file.json"])
def test_unknown_topology_source_is_not_found(name: str) -> None:
    with pytest.raises(CommandFailed) as caught:
        TopologySource(name, hardened=True).topology()
    assert caught.value.code is Exit.NOT_FOUND
    assert all(system in caught.value.do for system in DESIGNS)


def test_other_file_types_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "topology.yaml"
    path.write_text("a: b")
    with pytest.raises(CommandFailed, match=r"\.toml or \.json") as caught:
        TopologySource(str(path)).topology()
    assert caught.value.code is Exit.USAGE


@pytest.mark.parametrize("name", ["bad.toml", "bad.json"])
def test_binary_topology_file_is_refused_without_traceback(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(b"\xff\xfe\x00queue")
    with pytest.raises(CommandFailed, match="cannot be read"):
        TopologySource(str(path)).topology()


@pytest.mark.parametrize(("name", "text"), [("a.toml", "queues = 3"), ("a.json", "[1, 2")])
def test_invalid_topology_file_raises_invalid_topology(
    tmp_path: Path, name: str, text: str
) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(InvalidTopology):
        TopologySource(str(path)).topology()
