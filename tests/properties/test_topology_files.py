"""Topologies are preserved in TOML and JSON, and invalid input gives InvalidTopology."""

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
    few_examples,
    field_values,
    no_time_limits,
    read_or_error,
    toml_values,
    topologies,
)


def with_types(value: object) -> object:
    """Return a value with the types of all its parts, so that `Int8(1)`, `1` and `True` differ."""
    if isinstance(value, Mapping):
        return {key: with_types(inner) for key, inner in value.items()}
    if isinstance(value, tuple):
        return [with_types(inner) for inner in value]
    return type(value), repr(value)


@no_time_limits
@given(st.integers(0, LONGEST_MS))
def test_formatted_duration_is_parsed_as_the_same_number(duration_ms: int) -> None:
    text = format_duration(duration_ms)
    assert parse_duration_ms(text) == duration_ms
    assert format_duration(parse_duration_ms(text)) == text


def _is_duration(value: object) -> bool:
    """An independent definition: digits with units in descending order, or a number in range."""
    if isinstance(value, str):
        return re.fullmatch(r"\s*(\d+d)?(\d+h)?(\d+m)?(\d+s)?(\d+ms)?\s*", value) is not None
    return type(value) is int and 0 <= value <= LONGEST_MS


@no_time_limits
@given(st.text() | st.integers() | st.floats() | st.none() | st.booleans())
def test_invalid_duration_is_refused_with_the_expected_form(value: object) -> None:
    assume(not _is_duration(value))
    with pytest.raises(ValueError, match=r"^expected .*, got "):
        parse_duration_ms(value)  # type: ignore[arg-type]


@no_time_limits
@given(field_values)
def test_amqp_values_keep_their_type_in_json(value: object) -> None:
    place = Located("x", json.loads(json.dumps(encode(value))), [])  # type: ignore[arg-type]
    found = decode(place)
    assert place.problems == []
    assert with_types(_tuples(found)) == with_types(_tuples(value))


def _tuples(value: object) -> object:
    if isinstance(value, Mapping):
        return {key: _tuples(inner) for key, inner in value.items()}
    return tuple(_tuples(inner) for inner in value) if isinstance(value, tuple) else value


@few_examples
@given(topologies)
def test_every_topology_survives_toml(topology: Topology) -> None:
    """Including the types of arguments."""
    assert problems(topology) == ()
    found = read_toml(write_toml(topology))
    assert found == topology
    assert with_types({queue.name: queue.arguments for queue in found.queues}) == with_types(
        {queue.name: queue.arguments for queue in topology.queues}
    )


@few_examples
@given(topologies, st.booleans())
def test_every_topology_survives_json(topology: Topology, terse: bool) -> None:
    text = json.dumps(to_document(topology, terse=terse), allow_nan=False)
    assert from_document(json.loads(text)) == topology


@pytest.mark.parametrize("name", DESIGNS)
@pytest.mark.parametrize("hardened", [False, True])
def test_every_design_survives_toml_and_json(name: str, hardened: bool) -> None:
    topology = DESIGNS[name].build(hardened=hardened)
    assert read_toml(write_toml(topology)) == topology
    assert from_document(json.loads(json.dumps(to_document(topology)))) == topology


@no_time_limits
@given(st.text())
@example("[" * 5000)
@example("x = " + "[" * 5000)
@example("x = " + "9" * 5000)
@example('[queues."\\ud800"]')
def test_any_text_is_a_topology_or_invalid(text: str) -> None:
    """No other error is raised."""
    found = read_or_error(lambda: read_toml(text))
    assert isinstance(found, Topology) or found.problems


@no_time_limits
@given(st.dictionaries(st.text(max_size=3), toml_values, max_size=4) | toml_values)
@example({"queues": {"a": {"retry": [{"delay": "1s"}], "pattern": []}}})
@example({"plans": {"a": {"tiers": [{"delay": -1}], "parking": 5}}})
@example({1: 2})
@example({"queues": {"\ud800": {"retry": [{"delay": "1s"}]}}})
def test_any_data_is_a_topology_or_invalid(data: object) -> None:
    """InvalidTopology lists each problem once."""
    found = read_or_error(lambda: from_document(data))  # type: ignore[arg-type]
    if not isinstance(found, Topology):
        assert len(set(found.problems)) == len(found.problems) > 0


@no_time_limits
@given(st.recursive(st.just({}), lambda inner: st.fixed_dictionaries({"a": inner}), max_leaves=3))
def test_nested_arguments_within_the_limit_are_read(table: object) -> None:
    place = Located("x", table, [])
    assert _tuples(decode(place)) == _tuples(table)
