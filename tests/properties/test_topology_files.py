"""Files and documents: whatever is written is read back, and nothing read ever raises oddly."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from hopback.designs import DESIGNS
from hopback.durations import LONGEST_MS, format_duration, parse_duration_ms
from hopback.topology.arguments import decode, encode
from hopback.topology.document import from_document, read_toml, to_document, write_toml
from hopback.topology.located import Located
from hopback.topology.model import Topology
from hopback.topology.validate import problems
from tests.properties.topology_values import (
    attempt,
    few,
    field_values,
    toml_values,
    topologies,
    unhurried,
)


def typed(value: object) -> object:
    """A value with the types of everything in it, so that `Int8(1)`, `1` and `True` differ."""
    if isinstance(value, Mapping):
        return {key: typed(inner) for key, inner in value.items()}
    if isinstance(value, tuple):
        return [typed(inner) for inner in value]
    return type(value), repr(value)


@unhurried
@given(st.integers(0, LONGEST_MS))
def test_every_duration_is_read_back_as_written(duration_ms: int) -> None:
    """What `format_duration` writes, `parse_duration_ms` reads as the same number."""
    text = format_duration(duration_ms)
    assert parse_duration_ms(text) == duration_ms
    assert format_duration(parse_duration_ms(text)) == text


def _is_duration(value: object) -> bool:
    """By another way than the parser: digits with units in falling order, or a small number."""
    if isinstance(value, str):
        return re.fullmatch(r"\s*(\d+d)?(\d+h)?(\d+m)?(\d+s)?(\d+ms)?\s*", value) is not None
    return type(value) is int and 0 <= value <= LONGEST_MS


@unhurried
@given(st.text() | st.integers() | st.floats() | st.none() | st.booleans())
def test_what_is_no_duration_is_refused_with_words(value: object) -> None:
    """Anything else than a duration is a ValueError that says what was expected."""
    assume(not _is_duration(value))
    with pytest.raises(ValueError, match=r"^expected .*, got "):
        parse_duration_ms(value)  # type: ignore[arg-type]


@unhurried
@given(field_values)
def test_amqp_values_keep_their_type_in_json(value: object) -> None:
    """Every AMQP value comes back from JSON equal in value and type."""
    place = Located("x", json.loads(json.dumps(encode(value))), [])  # type: ignore[arg-type]
    found = decode(place)
    assert place.problems == []
    assert typed(_tuples(found)) == typed(_tuples(value))


def _tuples(value: object) -> object:
    if isinstance(value, Mapping):
        return {key: _tuples(inner) for key, inner in value.items()}
    return tuple(_tuples(inner) for inner in value) if isinstance(value, tuple) else value


@few
@given(topologies)
def test_every_topology_survives_toml(topology: Topology) -> None:
    """Written as TOML and read back, a topology is equal, in the types of its arguments too."""
    assert problems(topology) == ()
    found = read_toml(write_toml(topology))
    assert found == topology
    assert typed({queue.name: queue.arguments for queue in found.queues}) == typed(
        {queue.name: queue.arguments for queue in topology.queues}
    )


@few
@given(topologies, st.booleans())
def test_every_topology_survives_json(topology: Topology, terse: bool) -> None:
    """Written as a document, through JSON text and back, a topology is equal."""
    text = json.dumps(to_document(topology, terse=terse), allow_nan=False)
    assert from_document(json.loads(text)) == topology


@pytest.mark.parametrize("name", DESIGNS)
@pytest.mark.parametrize("hardened", [False, True])
def test_every_design_survives_toml_and_json(name: str, hardened: bool) -> None:
    """Each design, faithful and hardened, is equal after TOML and after JSON."""
    topology = DESIGNS[name].build(hardened=hardened)
    assert read_toml(write_toml(topology)) == topology
    assert from_document(json.loads(json.dumps(to_document(topology)))) == topology


@unhurried
@given(st.text())
@example("[" * 5000)
@example("x = " + "[" * 5000)
@example("x = " + "9" * 5000)
@example('[queues."\\ud800"]')
def test_any_text_is_a_topology_or_invalid(text: str) -> None:
    """Reading text as TOML gives a topology or InvalidTopology, never another error."""
    found = attempt(lambda: read_toml(text))
    assert isinstance(found, Topology) or found.problems


@unhurried
@given(st.dictionaries(st.text(max_size=3), toml_values, max_size=4) | toml_values)
@example({"queues": {"a": {"retry": [{"delay": "1s"}], "pattern": []}}})
@example({"plans": {"a": {"tiers": [{"delay": -1}], "parking": 5}}})
@example({1: 2})
@example({"queues": {"\ud800": {"retry": [{"delay": "1s"}]}}})
def test_any_data_is_a_topology_or_invalid(data: object) -> None:
    """Reading any data as a document gives a topology or InvalidTopology with all problems."""
    found = attempt(lambda: from_document(data))  # type: ignore[arg-type]
    if not isinstance(found, Topology):
        assert len(set(found.problems)) == len(found.problems) > 0


@unhurried
@given(st.recursive(st.just({}), lambda inner: st.fixed_dictionaries({"a": inner}), max_leaves=3))
def test_shallow_arguments_are_read(table: object) -> None:
    """Nested tables within the limit are read as they are."""
    place = Located("x", table, [])
    assert _tuples(decode(place)) == _tuples(table)
