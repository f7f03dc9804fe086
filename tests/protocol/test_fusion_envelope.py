"""Q2: the source's form of an envelope, to and from ours."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from holdfast.protocol.fusion_envelope import fusion_json, read_fusion
from holdfast.rules.errors import BadEnvelope, BadInput, UnknownEntityType, UnsupportedProtocol
from holdfast.rules.ids import id_text
from holdfast.rules.quorum.commit_record import decode_record
from holdfast.rules.quorum.intents import EntityChange, Guard, LeaseAcquire, decode_intent
from support.envelopes import make_id
from support.quorum_state import QuorumState, change, fence, intent, operation

PUT = operation("put", "mission", "m", {"title": "a", "later": [1, None]}, base=3, epoch=7)
SECTION_6 = {
    *("protocol", "version", "recordId", "entityType", "entityId", "originNodeId", "originSeq"),
    *("writeClass", "leaseEpoch", "fenceToken", "intentId", "state", "createdAt", "payload"),
}


def shown(**fields: Any) -> dict[str, Any]:
    made = change(PUT, id=make_id(8), origin="bob", lamport=12)
    return {**msgspec.json.decode(fusion_json(made, None)), **fields}


def test_Q2_an_intent_shows_all_fields_of_the_source_and_says_that_it_is_one() -> None:
    found = shown()
    assert set(found) == {*SECTION_6, "precondition"}
    assert found["protocol"] == "fusion.shared-mesh"
    assert (found["version"], found["state"], found["writeClass"]) == ("1.0", "intent", "strong")
    assert (found["leaseEpoch"], found["fenceToken"]) == (None, None)
    assert found["recordId"] == found["intentId"] == id_text(make_id(8))
    assert (found["originNodeId"], found["originSeq"]) == ("bob", 12)
    assert found["precondition"] == {"baseRevision": 3, "expectedEpoch": 7}
    assert found["payload"] == {"title": "a", "later": [1, None]}


def test_Q2_a_committed_one_shows_fence_state_and_time_of_its_record() -> None:
    state = QuorumState()
    made = change(operation("put", "mission", "m", {"title": "a"}))
    state.fold(made, fence(4, 2), 1_000)
    found = msgspec.json.decode(fusion_json(made, decode_record(state.records[0])))
    assert (found["state"], found["leaseEpoch"]) == ("committed", 2)
    assert found["fenceToken"] == str(fence(4, 2))
    assert found["committedAt"] == "1970-01-01T00:00:01.000Z"
    read = read_fusion(msgspec.json.encode(found))
    assert (read.fence, read.committed_at, read.state) == (fence(4, 2), 1_000, "committed")


def test_Q2_what_was_written_in_the_sources_form_is_read_back() -> None:
    operations = (
        PUT,
        operation("patch", "task", "t", {"column": "done"}, removed=("note",), base=1),
        operation("delete", "slice", "s"),
        operation("put", "project_settings", "p", {}, guard=Guard("deploy", 1, 2, 3)),
    )
    made = change(*operations)
    raw = fusion_json(made, None)
    read = read_fusion(raw)
    assert read.body == EntityChange(operations)
    assert (read.id, read.origin, read.created_at) == (made.id, made.origin, made.created_at)
    again = change(*read.body.operations, id=read.id, lamport=made.lamport)
    assert decode_intent(again) == EntityChange(operations)
    assert fusion_json(again, None) == raw


def test_Q2_minor_versions_are_read_and_their_fields_kept() -> None:
    later = shown(version="1.12", shard="x", nested={"a": [1]})
    read = read_fusion(msgspec.json.encode(later))
    assert read.unknown == {"shard": "x", "nested": {"a": [1]}}
    made = change(PUT, id=read.id)
    again = msgspec.json.decode(fusion_json(made, None, read.unknown))
    assert again["shard"] == "x"


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"protocol": "fusion.other"}, UnsupportedProtocol),
        ({"protocol": "holdfast"}, UnsupportedProtocol),
        ({"version": "2.0"}, UnsupportedProtocol),
        ({"version": "1"}, UnsupportedProtocol),
        ({"version": "1.x"}, UnsupportedProtocol),
        ({"version": 1.0}, UnsupportedProtocol),
        ({"recordId": "no id"}, BadInput),
        ({"intentId": id_text(make_id(9))}, BadEnvelope),
        ({"originNodeId": ""}, BadInput),
        ({"originSeq": -1}, BadEnvelope),
        ({"originSeq": "1"}, BadEnvelope),
        ({"state": "done"}, BadEnvelope),
        ({"writeClass": "queued"}, BadEnvelope),
        ({"writeClass": "local"}, BadEnvelope),
        ({"entityType": "sprint"}, UnknownEntityType),
        ({"entityId": ""}, BadInput),
        ({"payload": [1]}, BadEnvelope),
        ({"payload": {"title": "a\0"}}, BadInput),
        ({"payload": {}}, BadInput),
        ({"createdAt": 5}, BadEnvelope),
        ({"createdAt": "yesterday"}, BadInput),
        ({"fenceToken": "9"}, BadInput),
        ({"fenceToken": str(fence(1, 2)), "leaseEpoch": 3}, BadEnvelope),
        ({"leaseEpoch": 3, "precondition": {"expectedEpoch": 2}}, BadEnvelope),
        ({"originSeq": 1 << 70}, BadEnvelope),
        ({"precondition": {"baseRevision": -1}}, BadInput),
        ({"precondition": {"lease": "deploy"}}, BadEnvelope),
        ({"precondition": {"lease": "deploy", "fence": "9"}}, BadInput),
        ({"operation": "merge"}, BadEnvelope),
    ],
)
def test_Q2_what_is_not_of_the_sources_form_gets_a_typed_error(
    fields: dict[str, Any], error: type[BadInput]
) -> None:
    with pytest.raises(error):
        read_fusion(msgspec.json.encode(shown(**fields)))


@pytest.mark.parametrize("raw", [b"", b"[]", b"\xff", b"{}", b'{"protocol":"fusion.shared-mesh"}'])
def test_Q2_what_is_no_envelope_gets_a_typed_error(raw: bytes) -> None:
    with pytest.raises(BadInput):
        read_fusion(raw)


@pytest.mark.parametrize(
    ("name", "type"),
    [
        ("taskMetadata", "task_metadata"),
        ("agent", "agent_definition"),
        ("Task", "task"),
        ("settings", "project_settings"),
        ("project_settings", "project_settings"),
    ],
)
def test_Q2_types_are_known_by_the_sources_spelling_too(name: str, type: str) -> None:
    fields = {"entityType": name, "payload": {"title": "t", "name": "n"}}
    read = read_fusion(msgspec.json.encode(shown(**fields)))
    assert read.body.operations[0].type == type


def test_Q2_only_changes_of_entities_have_a_form_there() -> None:
    with pytest.raises(BadEnvelope):
        fusion_json(intent("lease.acquire", "deploy", LeaseAcquire(5_000)), None)
