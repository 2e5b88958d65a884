"""definitions.json in → model → the same out; and whatever comes in, nothing odd is raised."""

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
    attempt,
    few,
    json_topologies,
    json_values,
    toml_values,
    topologies,
    unhurried,
)

_VERSIONS = st.sampled_from(["3.7", "3.8", "3.9", "3.10.8", "3.12", "4.0", "4.2", "4.3", "4.3.1"])


def _unordered(document: object) -> object:
    """A definitions document in which the order of objects does not count, but types do."""
    assert isinstance(document, dict)
    return {
        key: sorted(json.dumps(entry, sort_keys=True) for entry in value)
        if isinstance(value, list)
        else json.dumps(value, sort_keys=True)
        for key, value in document.items()
    }


@few
@given(json_topologies, st.none() | st.sampled_from(["/", "shop"]))
def test_what_we_write_comes_back_the_same(topology: Topology, vhost: str | None) -> None:
    """A document that we wrote is written the same again after reading, in order and in bytes."""
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
    """Files as brokers of several versions and people write them: several virtual hosts, more or
    fewer keys than ours, the queue type said in other ways."""
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


@few
@given(_foreign_files())
def test_a_file_comes_out_as_it_went_in(document: dict[str, object]) -> None:
    """Read and written, a file has the same keys and objects, with the same fields and types."""
    vhosts = {entry.get("vhost") for key in ("queues", "exchanges", "bindings", "policies")
              for entry in document.get(key, []) if isinstance(entry, dict)}  # type: ignore[attr-defined]  # fmt: skip
    vhost = "shop" if len(vhosts - {None}) > 1 else None
    topology = read_definitions(document, vhost=vhost)
    again, notes = write_definitions(topology)
    assert notes == ()
    assert _unordered(again) == _unordered(document)
    assert list(again) == list(document)


@few
@given(_foreign_files())
def test_what_was_read_from_a_broker_survives_toml_if_it_is_valid(
    document: dict[str, object],
) -> None:
    """The model of a file, with all that is foreign in it, goes through TOML unchanged."""
    topology = attempt(lambda: read_definitions(document))
    if not isinstance(topology, Topology) or problems(topology):
        return
    again = read_toml(write_toml(topology))
    assert again == topology
    assert write_definitions(again)[0] == write_definitions(topology)[0]


@few
@given(topologies, _VERSIONS, st.none() | st.just("/"))
def test_every_topology_can_be_written_for_every_version(
    topology: Topology, version: str, vhost: str | None
) -> None:
    """Writing is total; the result is JSON, says what it left out, and needs no second pass."""
    chosen = BrokerVersion.parse(version)
    document, notes = write_definitions(topology, version=chosen, vhost=vhost)
    again = read_definitions(json.dumps(document, allow_nan=True))
    assert write_definitions(again, version=chosen)[1] == ()
    assert bool(notes) or diff(topology, again).is_up_to_date


@unhurried
@given(st.text() | st.binary())
@example("[" * 100_000)
@example('{"a": NaN}')
@example('{"a": ' + "9" * 5000 + "}")
@example(b"\xff")
def test_any_text_is_definitions_or_invalid(text: str | bytes) -> None:
    """Reading any text or bytes gives a topology or InvalidTopology, never another error."""
    found = attempt(lambda: read_definitions(text))
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


@few
@given(_shaped | toml_values)
@example({"queues": [{"name": "a", "vhost": []}], "exchanges": [{"vhost": {}}]})
@example({"queues": [{"name": "a", "arguments": {"x-queue-type": 5}}]})
def test_any_data_is_definitions_or_invalid(data: object) -> None:
    """Reading any data gives a topology or InvalidTopology, and the topology can be written."""
    found = attempt(lambda: read_definitions(data))  # type: ignore[arg-type]
    if isinstance(found, Topology):
        write_definitions(found, version=BrokerVersion(3, 10))
    else:
        assert found.problems
