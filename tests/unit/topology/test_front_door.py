"""The curated names of the topology package."""

from __future__ import annotations

import subprocess
import sys

import pytest

from hopback import topology


def test_every_name_can_be_had_and_nothing_else() -> None:
    """Each public name opens, `dir` shows it, and an unknown one is an error."""
    for name in topology.__all__:
        assert getattr(topology, name) is not None
    assert set(topology.__all__) <= set(dir(topology))
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        getattr(topology, "non" + "sense")


def test_the_model_loads_without_the_rest() -> None:
    """Importing the model loads no reader, writer, diagram or check."""
    program = "import sys, hopback.topology.model; print(*sys.modules)"
    ran = subprocess.run(
        [sys.executable, "-I", "-c", program], capture_output=True, text=True, check=True
    )
    loaded = {name for name in ran.stdout.split() if name.startswith("hopback.topology.")}
    assert loaded == {"hopback.topology.model"}
    assert {"json", "tomllib", "tomli_w"} & set(ran.stdout.split()) == set()
