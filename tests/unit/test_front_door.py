"""Front doors of packages."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module

import pytest

from hopback.front_door import find_package


def test_an_unknown_name_of_a_front_door_raises_attribute_error() -> None:
    with pytest.raises(AttributeError, match=r"has no attribute 'nothing'$"):
        getattr(import_module("hopback.topology"), "noth" + "ing")


@pytest.mark.parametrize(
    ("package", "name", "home"),
    [
        ("hopback", "AppTest", "hopback.testing"),
        ("hopback", "Database", "hopback.store"),
        ("hopback", "Codecs", "hopback.runtime"),
        ("hopback", "InvalidDeclaration", "hopback.errors"),
        ("hopback", "EmbeddedBroker", "hopback.broker"),
        ("hopback", "DESIGNS", "hopback.designs"),
        ("hopback.runtime", "PeriodicMessage", "hopback"),
        ("hopback.testing", "Scenario", "hopback.rehearse"),
    ],
)
def test_import_from_the_wrong_package_names_the_right_one(
    package: str, name: str, home: str
) -> None:
    hint = f"it is in {home}: `from {home} import {name}`$"
    with pytest.raises(ImportError, match=f"cannot import name '{name}' from '{package}': {hint}"):
        exec(f"from {package} import {name}")
    door = import_module(package)
    with pytest.raises(AttributeError, match=hint):
        getattr(door, name)
    assert not hasattr(door, name)
    exec(f"from {home} import {name}")


def test_import_of_an_unknown_name_fails_as_usual() -> None:
    with pytest.raises(ImportError, match="cannot import name 'nothing' from 'hopback' "):
        exec("from hopback import nothing")


def test_submodules_can_be_imported_from_their_package() -> None:
    """`rehearse` is also a function of `hopback.testing`."""
    program = "from hopback import rehearse, store; from hopback.runtime import periodic"
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.parametrize("word", ["Names", "annotations", "front_door", "."])
def test_a_word_that_is_not_exported_has_no_package(word: str) -> None:
    assert find_package(word) is None
