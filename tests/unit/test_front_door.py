"""Front doors of packages."""

from __future__ import annotations

from importlib import import_module

import pytest


def test_unknown_name_of_front_door_raises_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        getattr(import_module("hopback.topology"), "noth" + "ing")
