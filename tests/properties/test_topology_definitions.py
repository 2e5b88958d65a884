"""Definitions are preserved through reading and writing, and invalid input gives InvalidTopology."""

from __future__ import annotations

import json

from hypothesis import example, given
from hypothesis import strategies as st

from hopback.topology.definitions import SECTIONS, read_definitions, thaw, write_definitions
from hopback.topology.diff import diff
from hopback.topology.document import read_toml, write_toml
from hopback.topology.model import Topology
from hopback.topology.validate import problems
from hopback.version import BrokerVersion
from tests.properties.topology_values import (
    few_examples,
    json_topologies,
    json_values,
    no_time_limits,
    read_or_error,
    toml_values,
    topologies,
)

_VERSIONS = st.sampled_from(["3.7", "3.8", "3.9", "3.10.8", "3.12", "4.0", "4.2", "4.3", "4.3.1"])


def _normalize(document: object) -> object:
    """Return a document whose objects compare without order but with types."""
    assert isinstance(document, dict)
    return {
        key: sorted(json.dumps(entry, sort_keys=True) for entry in value)
        if isinstance(value, list)
        else json.dumps(value, sort_keys=True)
        for key, value in document.items()
    }


@few_examples
@given(json_topologies, st.none() | st.sampled_from(["/", "shop"]))
def test_written_definitions_are_identical_after_reading_and_writing(
    topology: Topology, vhost: str | None
) -> None:
    """In order and in bytes."""
    document, notes = write_definitions(topology, vhost=vhost)
    assert notes == ()
    text = json.dumps(document)
    found = read_definitions(text)
    assert found.queues == topology.queues
    assert found.exchanges == topology.exchanges
    assert found.bindings == topology.bindings
    assert found.policies == topology.policies
    assert json.dumps(write_definitions(found)[0]) == text


_extra = st.dictionaries(st.sampled_from(["type2", "properties_key", "node"]), json_values)


@st.composite
def _foreign_files(draw: st.DrawFn) -> dict[str, object]:
    """Return files as brokers of several versions and users write them: several virtual hosts,
    additional and missing keys, other notations of the queue type.
    """
    document: dict[str, object] = {}
    topology = draw(json_topologies)
    written, _ = write_definitions(topology)
    vhosts = draw(st.sampled_from([[], ["/"], ["/", "shop"]]))
    for section in SECTIONS:
        objects = written[section]
        assert isinstance(objects, list)
        entries: list[object] = []
        for entry in objects:
            varied = {**entry, **thaw(draw(_extra))}  # type: ignore[dict-item]
            for key in draw(st.sets(st.sampled_from(["durable", "internal", "arguments"]))):
                default = {"durable": True, "internal": False, "arguments": {}}[key]
                if varied.get(key) == default:
                    del varied[key]
            if section == "queues" and draw(st.booleans()):
                varied["arguments"] = {"x-queue-type": "classic", **varied.get("arguments", {})}
            entries += [{**varied, "vhost": vhost} for vhost in vhosts] or [varied]
        document[section] = draw(st.permutations(entries))
    for key, value in draw(st.dictionaries(st.sampled_from(["users", "zz"]), json_values)).items():
        document[key] = thaw(value)
    return document


@few_examples
@given(_foreign_files())
def test_read_and_written_file_has_the_same_keys_objects_and_types(
    document: dict[str, object],
) -> None:
    vhosts = {entry.get("vhost") for key in ("queues", "exchanges", "bindings", "policies")
              for entry in document.get(key, []) if isinstance(entry, dict)}  # type: ignore[attr-defined]  # fmt: skip
    vhost = "shop" if len(vhosts - {None}) > 1 else None
    topology = read_definitions(document, vhost=vhost)
    again, notes = write_definitions(topology)
    assert notes == ()
    assert _normalize(again) == _normalize(document)
    assert list(again) == list(document)


@few_examples
@given(_foreign_files())
def test_valid_topology_from_a_broker_survives_toml(
    document: dict[str, object],
) -> None:
    """Including foreign keys."""
    topology = read_or_error(lambda: read_definitions(document))
    if not isinstance(topology, Topology) or problems(topology):
        return
    again = read_toml(write_toml(topology))
    assert again == topology
    assert write_definitions(again)[0] == write_definitions(topology)[0]


@few_examples
@given(topologies, _VERSIONS, st.none() | st.just("/"))
def test_every_topology_can_be_written_for_every_version(
    topology: Topology, version: str, vhost: str | None
) -> None:
    """The result is JSON with notes on omitted objects. Writing it again omits no more."""
    target = BrokerVersion.parse(version)
    document, notes = write_definitions(topology, version=target, vhost=vhost)
    again = read_definitions(json.dumps(document, allow_nan=True))
    assert write_definitions(again, version=target)[1] == ()
    assert bool(notes) or diff(topology, again).is_up_to_date


@no_time_limits
@given(st.text() | st.binary())
@example("[" * 100_000)
@example('{"a": NaN}')
@example('{"a": ' + "9" * 5000 + "}")
@example(b"\xff")
def test_any_text_is_definitions_or_invalid(text: str | bytes) -> None:
    """No other error is raised."""
    found = read_or_error(lambda: read_definitions(text))
    assert isinstance(found, Topology) or found.problems


_FIELDS = """
name type vhost source destination destination_type durable arguments pattern
definition priority apply-to routing_key
"""
_shaped = st.fixed_dictionaries(
    {},
    optional={
        section: st.lists(
            st.dictionaries(
                st.sampled_from(_FIELDS.split()),
                toml_values,
                max_size=9,
            ),
            max_size=3,
        )
        | toml_values
        for section in ("queues", "exchanges", "bindings", "policies", "vhosts", "users")
    },
)


@few_examples
@given(_shaped | toml_values)
@example({"queues": [{"name": "a", "vhost": []}], "exchanges": [{"vhost": {}}]})
@example({"queues": [{"name": "a", "arguments": {"x-queue-type": 5}}]})
def test_any_data_is_definitions_or_invalid(data: object) -> None:
    """A topology that was read can be written."""
    found = read_or_error(lambda: read_definitions(data))  # type: ignore[arg-type]
    if isinstance(found, Topology):
        write_definitions(found, version=BrokerVersion(3, 10))
    else:
        assert found.problems
