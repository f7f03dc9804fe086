"""The routes of the source document: its field names, who may use them, what they refuse."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.node.settings import QuorumSettings, Settings
from holdfast.node.trust.own_key import OwnKey
from holdfast.rules.errors import NotGranted
from holdfast.rules.ids import id_text
from holdfast.rules.limits import SYNC_ENVELOPES_MAX
from holdfast.storage.files.home import HomePaths
from holdfast.transport.peer_client import PeerClient
from support.bus_homes import trust_of
from support.daemon import make_home
from support.envelopes import MESH, make_id
from support.quorum_daemon import QuorumUp, quorum_daemon


@pytest.fixture
def up(tmp_path: Path) -> Iterator[QuorumUp]:
    with quorum_daemon(tmp_path, Settings(tcp="127.0.0.1:0")) as made:
        yield made


def envelope(number: int, title: str = "Sail", **fields: Any) -> dict[str, Any]:
    """As a node of the source writes it."""
    id = id_text(make_id(number))
    return {
        "protocol": "fusion.shared-mesh",
        "version": "1.0",
        "recordId": id,
        "entityType": "mission",
        "entityId": f"m{number}",
        "originNodeId": "bo",
        "originSeq": number,
        "writeClass": "strong",
        "leaseEpoch": None,
        "fenceToken": None,
        "intentId": id,
        "state": "intent",
        "createdAt": "2026-05-17T08:30:00.000Z",
        "payload": {"title": title},
        **fields,
    }


def sync(up: QuorumUp, *envelopes: dict[str, Any], **more: Any) -> tuple[int, Any]:
    asked = {"protocol": "fusion.shared-mesh", "version": "1.0", "envelopes": envelopes, **more}
    answer = up.ask("POST", "/api/mesh/sync", json.dumps(asked).encode())
    return answer.status, answer.json


def get(up: QuorumUp, path: str) -> tuple[int, Any]:
    answer = up.ask("GET", path)
    return answer.status, answer.json


def test_Q2_envelopes_of_the_source_are_decided_once_and_answered_one_by_one(up: QuorumUp) -> None:
    bad = envelope(2, precondition={"baseRevision": 7})
    newer = envelope(3, version="1.4", colour="blue")
    alien = envelope(4, version="2.0")
    status, said = sync(up, envelope(1), bad, newer, alien, projectId=MESH)
    assert (status, said["protocol"], said["version"]) == (200, "fusion.shared-mesh", "1.0")
    assert (said["nodeId"], said["projectId"]) == ("ana", MESH)
    first, clash, minor, major = said["results"]
    assert (first["state"], first["outcome"], first["leaseEpoch"]) == ("committed", "applied", 1)
    assert first["revisions"] == {"mission/m1": 1}
    assert (clash["state"], clash["status"], clash["recordId"]) == (
        *("rejected", 409, bad["recordId"]),
    )
    assert minor["state"] == "committed"
    assert (major["state"], major["code"]) == ("rejected", "unsupported_protocol")
    again = sync(up, envelope(1))[1]["results"][0]
    assert (again["state"], again["outcome"]) == ("committed", "noop_already_applied")
    assert sync(up, envelope(5, state="committed"))[1]["results"][0]["code"] == "not_committed"
    many = [envelope(number) for number in range(SYNC_ENVELOPES_MAX + 1)]
    assert sync(up, *many)[1]["error"]["code"] == "over_limit"
    assert sync(up, version="3.1")[1]["error"]["code"] == "unsupported_protocol"


def test_Q14_append_only_envelopes_of_the_source_become_events_of_their_stream(
    up: QuorumUp,
) -> None:
    event = envelope(7, entityType="activityLog", writeClass="append-only", payload={"did": "x"})
    strong = envelope(8, writeClass="append-only")
    other = {**event, "payload": {"did": "y"}}
    status, said = sync(up, event, event, strong, other, projectId=MESH)
    assert status == 200
    outcomes = [(one["state"], one["outcome"], one["code"]) for one in said["results"]]
    assert outcomes == [
        ("committed", "applied", ""),
        ("committed", "noop_already_applied", ""),
        ("rejected", None, "bad_envelope"),
        ("rejected", None, "id_reused"),
    ]
    (kept,) = get(up, f"/v1/meshes/{MESH}/audit/activityLog")[1]["events"]
    assert (kept["id"], kept["origin"], kept["seq"]) == (event["recordId"], "ana", 1)
    assert kept["payload"] == {
        **{"originNodeId": "bo", "originSeq": 7, "entityId": "m7", "payload": {"did": "x"}},
        "createdAt": "2026-05-17T08:30:00.000Z",
    }


def test_Q4_an_envelope_of_another_lease_epoch_is_fenced_and_one_of_a_queue_is_not(
    up: QuorumUp,
) -> None:
    """Whether it is an old one or one that nobody has given out."""
    forged = "0000000009.0000000000000000009.0000000000000000009@ana"
    named = [
        envelope(1, leaseEpoch=0),
        envelope(2, leaseEpoch=9, fenceToken=forged),
        envelope(3, leaseEpoch=1),
        envelope(4, leaseEpoch=0, state="queued"),
    ]
    old, future, now, waited = sync(up, *named)[1]["results"]
    for fenced in (old, future):
        assert (fenced["state"], fenced["code"], fenced["status"]) == (
            *("rejected", "fence_too_old", 409),
        )
    assert (now["state"], waited["state"]) == ("committed", "committed")
    assert up.ask("GET", f"/v1/meshes/{MESH}/quorum/writes").json["writes"] == []


def test_Q4_a_fence_of_another_incarnation_is_fenced_though_its_epoch_is_the_one_of_now(
    up: QuorumUp,
) -> None:
    place = "0000000000000000001.0000000000000000001@ana"
    named = [
        envelope(1, leaseEpoch=1, fenceToken=f"0000000009.{place}"),
        envelope(2, leaseEpoch=1, fenceToken=f"0000000001.{place}"),
        envelope(3, leaseEpoch=1, fenceToken=f"0000000009.{place}", state="queued"),
    ]
    other, ours, waited = sync(up, *named)[1]["results"]
    assert (other["state"], other["code"], other["status"]) == ("rejected", "fence_too_old", 409)
    assert (ours["state"], waited["state"]) == ("committed", "committed")
    # What was decided is answered from its record, whatever it names now.
    again = sync(up, envelope(2, leaseEpoch=1, fenceToken=f"0000000009.{place}"))[1]["results"][0]
    assert (again["state"], again["outcome"]) == ("committed", "noop_already_applied")


def test_Q3_an_envelope_without_a_quorum_is_queued_and_the_caller_is_told(up: QuorumUp) -> None:
    up.lose_quorum()
    status, said = sync(up, envelope(1))
    assert (status, said["results"][0]["state"]) == (202, "queued")
    assert said["readState"]["mode"] == "degraded"
    state = get(up, "/api/mesh/state?read=local")[1]["readState"]
    assert (state["queueDepth"], state["pendingWriteCount"], state["failedWriteCount"]) == (1, 1, 0)


def test_Q9_the_state_of_the_mesh_never_hides_a_fallback(up: QuorumUp) -> None:
    sync(up, envelope(1))
    status, said = get(up, "/api/mesh/state?entityType=mission")
    assert (status, said["coordinatorNodeId"], said["leaseEpoch"]) == (200, "ana", 1)
    assert said["members"][0] == {
        **{"nodeId": "ana", "role": "coordinator", "linked": True, "lag": None}
    }
    (entity,) = said["entities"]
    assert (entity["entityId"], entity["revision"], entity["payload"]) == (
        *("m1", 1, {"title": "Sail"}),
    )
    assert entity["fenceToken"].endswith("@ana")
    assert said["readState"]["mode"] == "fresh"
    up.lose_quorum()
    assert get(up, "/api/mesh/state")[1]["error"]["code"] == "not_fresh"
    said = get(up, "/api/mesh/state?read=local")[1]
    assert (said["readState"]["mode"], said["coordinatorNodeId"]) == ("degraded", None)


def test_Q13_nodes_are_listed_with_what_is_known_of_each(up: QuorumUp) -> None:
    status, said = get(up, "/api/nodes")
    assert (status, said["projectId"]) == (200, MESH)
    assert said["nodes"] == [
        {"id": "ana", "status": "online", "role": "coordinator", "isLocal": True}
        | {"lastHeardMs": None}
    ]


def test_Q11_settings_are_an_entity_and_a_secret_among_them_is_refused(up: QuorumUp) -> None:
    def put(**fields: Any) -> tuple[int, Any]:
        answer = up.ask("PUT", "/api/settings", json.dumps(fields).encode())
        return answer.status, answer.json

    assert get(up, "/api/settings")[1]["revision"] == 0
    assert put(settings={"theme": "dark"}, baseRevision=0)[0] == 200
    said = get(up, "/api/settings")[1]
    assert (said["settings"], said["revision"]) == ({"theme": "dark"}, 1)
    assert put(settings={"theme": "light"}, baseRevision=0)[0] == 409
    for secret in ({"openai": {"apiKey": "sk-12345"}}, {"refreshToken": "r"}):
        status, said = put(settings=secret)
        assert (status, said["error"]["code"]) == (422, "secret_refused")
        assert "sk-12345" not in json.dumps(said)
    status, said = sync(up, sharedState={"settings": {"theme": "dark"}})
    assert (status, said["error"]["code"]) == (400, "bad_input")
    in_envelope = envelope(9, entityType="projectSettings", payload={"password": "sk-12345"})
    assert sync(up, in_envelope)[1]["results"][0]["code"] == "secret_refused"


def test_Q11_the_routes_demand_a_token_and_one_that_reads_does_not_write(up: QuorumUp) -> None:
    trust = up.daemon.daemon.api.trust
    all_of_it = up.daemon.run(trust.add_token, "node")
    reads, other = (
        up.daemon.run(lambda n=name, m=mesh: trust.add_token(n, reads=[m]))
        for name, mesh in (("reader", MESH), ("other", "elsewhere"))
    )
    at = up.daemon.tcp
    empty, full = (
        json.dumps({"envelopes": envelopes}).encode() for envelopes in ([], [envelope(1)])
    )
    for path in ("/api/mesh/state", "/api/nodes", "/api/settings", "/api/settings/auth-export"):
        assert up.ask("GET", path, at=at).status == 401
    assert up.ask("POST", "/api/mesh/sync", empty, at=at).status == 401
    assert up.ask("POST", "/api/mesh/sync", full, at=at, token=all_of_it).status == 200
    assert up.ask("GET", "/api/mesh/state", at=at, token=reads).status == 200
    assert up.ask("GET", "/api/mesh/state", at=at, token=other).code == NotGranted.code
    assert up.ask("POST", "/api/mesh/sync", empty, at=at, token=reads).status == 200
    assert up.ask("POST", "/api/mesh/sync", full, at=at, token=reads).code == NotGranted.code
    put = json.dumps({"settings": {}}).encode()
    assert up.ask("PUT", "/api/settings", put, at=at, token=reads).code == NotGranted.code
    assert up.ask("GET", f"/v1/meshes/{MESH}/quorum", at=at, token=reads).code == NotGranted.code


def test_Q11_auth_material_has_a_switch_of_its_own_that_is_off(up: QuorumUp) -> None:
    calls = (
        ("GET", "/api/settings/auth-export", None),
        ("POST", "/api/settings/auth-receive", b"{}"),
        ("POST", "/api/nodes/bo/auth/sync", b"{}"),
        ("POST", "/api/mesh/sync", b'{"sharedState":{"authMaterial":{}}}'),
    )
    for method, path, body in calls:
        answer = up.ask(method, path, body)
        assert (answer.status, answer.code) == (403, "auth_channel_closed")
        assert "auth_channel = true" in answer.json["error"]["hint"]
    assert QuorumSettings().auth_channel is False


def test_Q11_a_signed_hello_reads_and_writes_its_meshes_and_auth_needs_a_word_more(
    tmp_path: Path,
) -> None:
    settings = Settings(
        listen="127.0.0.1:0", quorum=QuorumSettings(auth_channel=True, auth_peers=["cy"])
    )
    bo = make_home(tmp_path / "bo", "bo")
    with ExitStack() as ending:
        up = ending.enter_context(quorum_daemon(tmp_path, settings))
        node = ending.enter_context(holdfast.open(bo, sync="normal"))
        trust = up.daemon.daemon.api.trust
        theirs = trust_of(node)
        up.daemon.run(lambda: trust.trust(theirs.card(), reads=[MESH]))
        theirs.trust(up.daemon.card)
        seed = OwnKey(node._engine, HomePaths(node.home)).seed
        far = PeerClient(up.daemon.tls, us=("bo", seed), pinned=lambda: theirs.zone("ana"))
        ending.callback(far.close)
        client = far._calls
        asked = json.dumps({"envelopes": [envelope(1)], "projectId": MESH}).encode()
        said = json.loads(client.call("POST", "/api/mesh/sync", body=asked).body)
        assert said["results"][0]["state"] == "committed"
        assert client.call("GET", "/api/mesh/state").status == 200
        for path in ("/api/settings/auth-export", f"/v1/meshes/{MESH}/quorum"):
            with pytest.raises(NotGranted):
                client.call("GET", path)
        up.daemon.run(
            up.daemon.daemon.api.bus.set_quorum,  # type: ignore[union-attr]
            QuorumSettings(auth_channel=True, auth_peers=["bo"]),
        )
        assert client.call("GET", "/api/settings/auth-export").status == 200
