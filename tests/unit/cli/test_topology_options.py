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
def test_a_system_is_built_by_its_name(name: str) -> None:
    """Both forms can be had by name."""
    assert TopologySource(name).topology() == DESIGNS[name].build()
    assert TopologySource(name, hardened=True).topology() == DESIGNS[name].build(hardened=True)


def test_parameters_reach_the_design() -> None:
    """`--param` changes what is built."""
    topology = TopologySource("ratatoskr", params=(("queue", "shop.events"),)).topology()
    assert topology.queue("shop.events.retry") is not None


def test_a_wrong_parameter_is_a_matter_of_usage() -> None:
    """It names the parameter, what was expected and where the parameters are listed."""
    with pytest.raises(CommandFailed, match=r"params\.max_retries") as caught:
        TopologySource("raffle", params=(("max_retries", "many"),)).topology()
    assert caught.value.code is Exit.USAGE
    assert "hopback systems raffle" in caught.value.do


def test_a_toml_file_is_read(tmp_path: Path) -> None:
    """What was written is what is read, a byte order mark or not."""
    raffle = DESIGNS["raffle"].build()
    path = tmp_path / "raffle.toml"
    path.write_text(write_toml(raffle), encoding="utf-8-sig")
    assert TopologySource(str(path)).topology() == raffle


def test_a_file_takes_no_options_of_a_design(tmp_path: Path) -> None:
    """A file says itself what it declares."""
    path = tmp_path / "own.toml"
    path.write_text("")
    with pytest.raises(click.UsageError, match="--hardened is for a documented system"):
        TopologySource(str(path), hardened=True).topology()
    with pytest.raises(click.UsageError, match="--param is for a documented system"):
        TopologySource(str(path), params=(("a", "b"),)).topology()


@pytest.mark.parametrize("name", ["nothing", "nothing.toml", "no/such/file.json"])
def test_what_is_neither_is_not_found(name: str) -> None:
    """The error lists the systems and the kinds of file."""
    with pytest.raises(CommandFailed) as caught:
        TopologySource(name, hardened=True).topology()
    assert caught.value.code is Exit.NOT_FOUND
    assert all(system in caught.value.do for system in DESIGNS)


def test_another_kind_of_file_is_refused(tmp_path: Path) -> None:
    """Only the two kinds that say what they are."""
    path = tmp_path / "topology.yaml"
    path.write_text("a: b")
    with pytest.raises(CommandFailed, match=r"\.toml or \.json") as caught:
        TopologySource(str(path)).topology()
    assert caught.value.code is Exit.USAGE


@pytest.mark.parametrize("name", ["bad.toml", "bad.json"])
def test_bytes_that_are_no_text_are_refused(tmp_path: Path, name: str) -> None:
    """No traceback for a file of another kind under that name."""
    path = tmp_path / name
    path.write_bytes(b"\xff\xfe\x00queue")
    with pytest.raises(CommandFailed, match="cannot be read"):
        TopologySource(str(path)).topology()


@pytest.mark.parametrize(("name", "text"), [("a.toml", "queues = 3"), ("a.json", "[1, 2")])
def test_a_wrong_file_says_what_is_wrong(tmp_path: Path, name: str, text: str) -> None:
    """What is wrong inside a file is the reader's own error."""
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(InvalidTopology):
        TopologySource(str(path)).topology()
