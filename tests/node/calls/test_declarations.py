"""Every verb of the library is a call, and every call says what it takes."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import pytest

from holdfast.node.calls.all import CALLS
from holdfast.node.calls.wires import read_model_text
from holdfast.node.http.app import node_routes
from holdfast.node.library.families import AuditTrail, Facts, Files, Memories, State, Tasks, Vectors
from holdfast.node.library.node import Mesh, Node
from holdfast.node.library.presence import PeerPresences
from holdfast.node.library.telemetry import Telemetry
from holdfast.node.log.log import Log
from holdfast.node.messages.inbox import Inbox
from holdfast.node.messages.outbox import Outbox
from holdfast.node.sharing.sharing import Sharing
from holdfast.rules.errors import BadVector
from holdfast.rules.vectors import Model

ELSEWHERE = {
    "State.get": "State.entry",
    "Memories.get": "Memories.recall",
    "PeerPresences.get": "PeerPresences.list",
    "Telemetry.get": "Telemetry.entry",
    "Node.mesh": "Mesh.info",
    "Node.apply": "what arrives comes by links, brokers and imports",
    "Node.sweep": "the daemon sweeps by itself",
    "Node.close": "ends the use of a home",
    "Node.receive_blob": "PUT /v1/objects",
    "Node.open_blob": "GET /v1/objects/{sha256}",
    "Log.watch": "GET /v1/events",
    "State.watch": "GET /v1/events?family=state",
    "Memories.watch": "GET /v1/events?family=memory",
    "Vectors.watch": "GET /v1/events?family=vector",
    "Files.watch": "GET /v1/events?family=file",
    "Tasks.watch": "GET /v1/events?family=task",
    "Facts.watch": "GET /v1/events?family=fact",
    "Mesh.batch": "POST /v1/meshes/{mesh}/batch",
    "Mesh.send": "POST /v1/send",
    "Mesh.lease": "a lease lives as long as its session: /v1/meshes/{mesh}/quorum/leases",
    "Files.share": "PUT /v1/meshes/{mesh}/files/{path}",
    "Files.read": "GET /v1/meshes/{mesh}/files/{path}",
    "Files.open": "GET /v1/meshes/{mesh}/files/{path}",
    "Files.last_known": "GET /v1/meshes/{mesh}/file-last-known/{path}",
    "Vectors.reembed": "POST /v1/meshes/{mesh}/reembedding",
    "AuditTrail": "/v1/meshes/{mesh}/audit",
    "Telemetry": "/v1/meshes/{mesh}/telemetry",
    "Inbox": "/v1/inbox",
    "Outbox": "/v1/outbox",
    "Log.head": "GET /v1/log",
    **dict.fromkeys(("Log.consumers", "Log.add_consumer", "Log.retire"), "/v1/consumers"),
    **dict.fromkeys(("Log.batch", "Log.confirm"), "/v1/facts"),
}
"""Verbs that are reached by another call than one of their own, and why or where."""

FACES = (
    *(State, Memories, Vectors, Files, Tasks, Facts, PeerPresences, Mesh, Node, Sharing),
    *(AuditTrail, Telemetry, Inbox, Outbox, Log),
)


def verbs() -> Iterator[str]:
    for face in FACES:
        for name, verb in vars(face).items():
            if inspect.isfunction(verb) and not name.startswith("_"):
                yield f"{face.__name__}.{name}"


def test_U4_every_verb_of_the_library_is_reached_over_http() -> None:
    declared = {f"{call.face.__name__}.{call.verb.__name__}" for call in CALLS}
    left = [
        name
        for name in verbs()
        if name not in declared and not {name, name.partition(".")[0]} & ELSEWHERE.keys()
    ]
    assert left == [], "declare them in node/calls, or say above where they are"
    known = {*verbs(), *(face.__name__ for face in FACES)}
    assert sorted(declared & ELSEWHERE.keys()) == []
    assert sorted(ELSEWHERE.keys() - known) == []


def test_U4_a_call_that_writes_is_for_this_nodes_own_user_alone() -> None:
    """So a token for reading never writes."""
    routes = {(route.method, route.path): route for route in node_routes()}
    for call in CALLS:
        route = routes[call.method, call.path]
        assert route.local_only is call.writes, call.name
        changes = "operation" in vars(call.verb) or call.method in ("PUT", "DELETE")
        assert call.writes or not changes, call.name
    assert [call.name for call in CALLS if call.method == "POST" and not call.writes] == [
        "vectors.search"
    ]


def test_U1_every_declared_verb_shows_an_example() -> None:
    """They are run by `library/families/test_examples`."""
    without = {call.name for call in CALLS if ">>>" not in (inspect.getdoc(call.verb) or "")}
    assert sorted(without) == []


def test_U4_no_two_declared_calls_share_a_route() -> None:
    routes = [f"{call.method} {call.path}" for call in CALLS]
    assert len(routes) == len(set(routes))
    names = [call.document for call in CALLS if call.form != "one"]
    assert len({kind.__name__ for kind in names}) == len(names)


def test_S8_a_model_in_an_address_may_have_colons_in_its_name() -> None:
    found = read_model_text("ollama:nomic:v1.5:1:768:float32", {})
    assert found == Model(provider="ollama", name="nomic:v1.5", version="1", dim=768)
    for text in ("", "p", "p:m:1", "p:m:1:x:float32"):
        with pytest.raises(BadVector):
            read_model_text(text, {})
