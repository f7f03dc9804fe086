"""Write the test vectors of the protocol: src/holdfast/protocol/vectors, which the wheel carries.

    python tools/vectors.py            write those that are made from the code
    python tools/vectors.py --check    say which differ, and fail if any does

The fingerprints and the ids from keys were published by hand and are not made here: the code has to
follow them. What a published file says never changes; new vectors are added at its end.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, get_args

import msgspec
from msgspec import inspect as shapes

from holdfast.protocol import frames
from holdfast.rules import bodies, keys
from holdfast.rules.arrivals import Arrival
from holdfast.rules.bodies import Body, encode_body, family_of
from holdfast.rules.broker_rows import FeedRow
from holdfast.rules.data_classes import data_class_of, write_class_of
from holdfast.rules.envelope import Base, Envelope, encode
from holdfast.rules.fingerprint import fingerprint, fingerprint_2
from holdfast.rules.ids import id_text, uuid7
from holdfast.rules.message import MESSAGE_VERSION
from holdfast.rules.order import Version, order_key

ROOT: Final = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
from tools import bus_vectors  # noqa: E402 - the tools are no package that is installed

FOLDER: Final = ROOT / "src" / "holdfast" / "protocol" / "vectors"
AT_MS: Final = 1_700_000_000_000
KEY: Final = "ab" * 32


# --- hello ---------------------------------------------------------------------------------------


def hello() -> dict[str, Any]:
    about = "Ed25519 seeds, the transcript of a hello, and what each side signs; see docs/protocol"
    return {"what": about, "vectors": _hellos("http")}


def bus_hello() -> dict[str, Any]:
    """Peers of the bus are keys: their names are empty."""
    about = "as hello.json, on a link of the bus: no names, and other words before the transcript"
    made = _hellos("bus")
    for one in made:
        del one["client_card"]
    return {"what": about, "vectors": made}


def _hellos(purpose: keys.Purpose) -> list[dict[str, Any]]:
    made: list[dict[str, Any]] = []
    for name, client, server, digest in (
        ("with TLS", "ana", "hub", sha256(b"a certificate").digest()),
        ("without TLS", "ana", "hub", bytes(32)),
        ("names with other letters", "Zoë:7", "größe" * 12, sha256(b"another").digest()),
    ):
        client_seed, server_seed = (sha256(f"{name} {who}".encode()).digest() for who in "cs")
        transcript = keys.HelloTranscript(
            client_zone=client if purpose == "http" else "",
            client_key=keys.public_key(client_seed),
            client_nonce=sha256(f"{name} client nonce".encode()).digest(),
            server_zone=server if purpose == "http" else "",
            server_key=keys.public_key(server_seed),
            server_nonce=sha256(f"{name} server nonce".encode()).digest(),
            certificate=digest,
        )
        made.append(
            {
                "name": name,
                "client_seed": client_seed,
                "server_seed": server_seed,
                **msgspec.structs.asdict(transcript),
                "transcript": transcript.transcript(),
                "client_proof": keys.prove(client_seed, "client", transcript, purpose),
                "server_proof": keys.prove(server_seed, "server", transcript, purpose),
                "client_card": keys.card_of(client, keys.public_key(client_seed)),
            }
        )
    return made


# --- envelopes -----------------------------------------------------------------------------------


def _id(number: int) -> bytes:
    return uuid7(AT_MS, b"\0\0\0" + number.to_bytes(7, "big"))


def _envelope(number: int, op: str, entity: str, body: Body, **given: Any) -> Envelope:
    encoded = encode_body(body)
    meta = given.get("meta", b"")
    fields: dict[str, Any] = {
        "id": _id(number),
        "mesh": "team",
        "op": op,
        "entity": entity,
        "owner": "ana" if family_of(op) in bodies.OWNED else "",
        "origin": "ana",
        "epoch": 1,
        "seq": number,
        "lamport": 100 + number,
        "created_at": AT_MS + number,
        "write_class": write_class_of(data_class_of(family_of(op)), voters=False).value,
        "fingerprint": fingerprint(
            kind=op, ref="-" if op == "task.create" else entity, body=encoded, meta=meta
        ),
        "body": encoded,
        **given,
    }
    return Envelope(**fields)


def _message(number: int, kind: str, ref: str, content: bytes, **given: Any) -> Envelope:
    body = bodies.MessageSend(content, given.pop("content_type", ""))
    asked = {name: given[name] for name in ("reply_to", "priority", "meta") if name in given}
    mark = fingerprint_2(kind=kind, ref=ref, body=content, content_type=body.content_type, **asked)
    return _envelope(
        number,
        "message.send",
        f"{kind}/{ref}",
        body,
        version=MESSAGE_VERSION,
        to=(kind, ref),
        fingerprint=mark,
        **given,
    )


def _samples() -> list[tuple[str, Envelope]]:
    task = id_text(_id(20))
    model = bodies.VectorStore("openai", "small", "3", 2, "float32", bytes.fromhex("0000803f") * 2)
    made: list[tuple[str, Envelope]] = [
        ("state.set", _envelope(1, "state.set", "k", bodies.StateSet(b'{"a":[1,2.5,null]}'))),
        (
            "state.delete",
            _envelope(2, "state.delete", "k", bodies.Nothing(), base=Base(101, "ana")),
        ),
        (
            "memory.set",
            _envelope(3, "memory.set", "käse", bodies.MemorySet('"größe"'.encode(), ("a", "b"))),
        ),
        ("memory.forget", _envelope(4, "memory.forget", "käse", bodies.Nothing())),
        ("vector.store", _envelope(5, "vector.store", "doc", model)),
        (
            "vector.delete",
            _envelope(6, "vector.delete", "doc", bodies.VectorDelete(model.identity().fingerprint)),
        ),
        (
            "file.share, inline",
            _envelope(
                7, "file.share", "a/b.txt", bodies.FileShare(sha256(b"hi").digest(), 2, b"hi")
            ),
        ),
        (
            "file.share, as an object",
            _envelope(
                8, "file.share", "big.bin", bodies.FileShare(sha256(bytes(65536)).digest(), 65536)
            ),
        ),
        ("file.delete", _envelope(9, "file.delete", "a/b.txt", bodies.Nothing())),
        ("task.create", _envelope(20, "task.create", task, bodies.TaskCreate("paint", "the gate"))),
        ("task.claim", _envelope(21, "task.claim", task, bodies.TaskTurn(0))),
        ("task.release", _envelope(22, "task.release", task, bodies.TaskTurn(0))),
        ("task.complete", _envelope(23, "task.complete", task, bodies.Nothing())),
        ("task.cancel", _envelope(24, "task.cancel", task, bodies.Nothing())),
        ("fact.append", _envelope(30, "fact.append", "pump 7", bodies.Fact("is", b'"hot"'))),
        (
            "fact.append with an object and meta",
            _envelope(
                31,
                "fact.append",
                "pump 7",
                bodies.Fact("looks like", b"null", (sha256(b"photo").digest(),)),
                meta=b'{"by":"camera","n":1}',
            ),
        ),
        ("message to a topic", _message(40, "topic", "news", b"hello")),
        (
            "message to a member, with everything",
            _message(
                41,
                "dm",
                KEY,
                b'{"a":1}',
                content_type="application/json",
                meta=b'{"trace":"x"}',
                reply_to=id_text(_id(40)),
                priority="now",
            ),
        ),
        ("message to a queue", _message(42, "queue", "jobs", b"\x00\xff")),
    ]
    return made


def envelopes() -> dict[str, Any]:
    made = []
    for name, sample in _samples():
        raw = encode(sample)
        refused = Arrival(raw).error
        assert refused is None, f"{name}: {refused}"
        kind = bodies._BODIES[sample.op][0]
        body = msgspec.msgpack.decode(sample.body, type=kind)
        fields = {**msgspec.structs.asdict(sample), "body_fields": msgspec.structs.asdict(body)}
        made.append({"name": name, "fields": fields, "raw": raw})
    about = "the fields of an envelope and its canonical bytes; bytes are hex, ids too"
    return {"what": about, "vectors": made}


def refused_envelopes() -> dict[str, Any]:
    good = dict(_samples())["state.set"]
    message = dict(_samples())["message to a topic"]

    def changed(of: Envelope = good, **fields: Any) -> bytes:
        return encode(msgspec.structs.replace(of, **fields))

    def of_body(body: Body) -> bytes:
        return changed(body=encode_body(body))

    raw = encode(good)
    cases: list[tuple[str, bytes]] = [
        ("empty", b""),
        ("cut off", raw[:-1]),
        ("something behind it", raw + b"\xc0"),
        ("a field more in a version that has it not", _array(24 + 1, raw[3:] + b"\xc0")),
        ("another major version", changed(version="2.0")),
        ("another protocol", changed(protocol="other")),
        ("a text in a longer form than it needs", raw.replace(b"\xa1k", b"\xd9\x01k", 1)),
        ("an id of version 4", changed(id=bytes.fromhex("018bcfe56800400080000000000000ff"))),
        ("an id of 15 bytes", changed(id=_id(1)[:15])),
        ("a mesh with a capital", changed(mesh="Team")),
        ("an empty entity", changed(entity="")),
        ("a peer with a line break", changed(origin="a\nb")),
        ("a peer that is not NFC", changed(origin="e\u0301")),
        ("a lamport of 0", changed(lamport=0)),
        ("a base that is not older", changed(base=Base(good.lamport, "bob"))),
        ("meta that is no object", changed(meta=b"[1]")),
        ("meta with its keys out of order", changed(meta=b'{"b":1,"a":1}')),
        ("meta with a blank", changed(meta=b'{"a": 1}')),
        ("meta that is not UTF-8", changed(meta=b'{"a":"\xff"}')),
        ("a value with a line break", of_body(bodies.StateSet(b"[1,\n2]"))),
        ("a value with a key twice", of_body(bodies.StateSet(b'{"a":1,"a":2}'))),
        ("a value with an escape that it needs not", of_body(bodies.StateSet(b'"\\u0041"'))),
        ("a value that is no JSON", of_body(bodies.StateSet(b"NaN"))),
        ("a value with a NUL", of_body(bodies.StateSet(b'"\\u0000"'))),
        ("state with an owner", changed(owner="ana")),
        ("state with a destination", changed(to=("topic", "news"))),
        ("memory without an owner", changed(dict(_samples())["memory.set"], owner="")),
        ("memory of another owner", changed(dict(_samples())["memory.set"], owner="bob")),
        ("a task that is no id", changed(dict(_samples())["task.claim"], entity="paint")),
        ("a file whose content has another hash", changed(
            dict(_samples())["file.share, inline"],
            body=encode_body(bodies.FileShare(bytes(32), 2, b"hi")))),
        ("a message with another fingerprint", changed(message, fingerprint=bytes(32))),
        ("a message that names no destination", changed(message, to=None)),
        ("a message about something else", changed(message, entity="topic/other")),
        ("a dm to a name", changed(message, to=("dm", "bob"), entity="dm/bob")),
    ]  # fmt: skip
    made = []
    for name, bad in cases:
        error = Arrival(bad).error
        assert error is not None, f"{name} is not refused"
        made.append({"name": name, "raw": bad, "code": error.code})
    about = "bytes that a receiver refuses, and the code of the error that ours gives"
    return {"what": about, "vectors": made}


def _array(count: int, rest: bytes) -> bytes:
    return b"\xdc" + count.to_bytes(2, "big") + rest


# --- frames and order ----------------------------------------------------------------------------


def all_frames() -> dict[str, Any]:
    raw = encode(dict(_samples())["state.set"])
    where = frames.MeshPosition(
        "team", "0192…", 2, 40, 1, 45, ("read", "write", "send"), ((1, 0), (2, 40))
    )
    row = FeedRow(45, "change", _id(90), raw)
    answers = [
        frames.PushAnswer(1, 201, 2, 46, _id(91), True, AT_MS),
        frames.PushAnswer(2, 409, problem=frames.WireError("idempotency_key_reused", "…", "…")),
    ]
    supported = {"mesh_sync": {"version": 1}}
    lease = bytes(range(16))
    given: list[msgspec.Struct] = [
        frames.Challenge(bytes(range(32)), "hub", bytes(32), supported),
        frames.Welcome(bytes(64), "hf_session", 3_600_000, [where]),
        frames.MeshMoved(where),
        frames.Entries("team", 2, 44, 45, [row], 45),
        frames.Urgent("team", [row]),
        frames.Acks("team", 2, answers),
        frames.SnapshotNeeded("team", 12, "s1", 40),
        frames.QueueMessage("team", "jobs", 7, lease, 1, 30_000, _id(92), raw),
        frames.Refusal("team", frames.WireError("not_a_member", "…")),
        frames.SnapshotWanted("team"),
        frames.CommitsAt("team", 7),
        frames.Hello("ana", bytes(32), bytes(32), bytes(64), {"mesh_sync": 1}),
        frames.Follow("team", 2, 44),
        frames.Unfollow("team"),
        frames.Confirmed("team", 2, 45),
        frames.Push("team", 2, [frames.Item(1, raw)]),
        frames.Take("team", "jobs", 10),
        frames.Settle("team", "jobs", 7, lease, "done"),
    ]
    kinds = {*get_args(frames.FromBroker), *get_args(frames.FromNode)}
    assert {type(frame) for frame in given} == kinds, "one of each"
    made = [
        {
            "name": type(frame).__name__,
            "kind": shapes.type_info(type(frame)).tag,  # type: ignore[attr-defined]
            "fields": msgspec.to_builtins(frame, builtin_types=(bytes,))[1:],
            "raw": frames.encode_frame(frame),
        }
        for frame in given
    ]
    return {"what": "the elements of each frame behind its kind, and its bytes", "vectors": made}


def order() -> dict[str, Any]:
    given = [
        Version(lamport, peer, _id(number))
        for lamport, peer, number in (
            *((1, "zoë", 1), (2, "ana", 1), (2, "ana", 2), (2, "anab", 1), (2, "z", 1)),
            *((2, "é", 1), (2, "\uffee", 1), (2, "\U0001f600", 1), (10, "a", 1)),
        )
    ]
    assert given == sorted(given, key=order_key)
    made = [{"lamport": v.lamport, "peer": v.peer, "id": v.id} for v in given]
    return {"what": "versions from the oldest to the newest, by the one order", "vectors": made}


# --- all -----------------------------------------------------------------------------------------

MADE: Final[dict[str, Callable[[], dict[str, Any]]]] = {
    "hello.json": hello,
    "envelopes.json": envelopes,
    "refused_envelopes.json": refused_envelopes,
    "frames.json": all_frames,
    "order.json": order,
    "bus_hello.json": bus_hello,
    "bus_messages.json": bus_vectors.messages,
    "bus_parcels.json": bus_vectors.parcels,
    "bus_refused_parcels.json": bus_vectors.refused_parcels,
    "bus_capabilities.json": bus_vectors.bus_capabilities,
}


def _json(value: Any) -> Any:
    """As JSON: bytes are hex."""
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, dict):
        return {key: _json(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_json(part) for part in value]
    if isinstance(value, msgspec.Struct):
        return _json(msgspec.structs.astuple(value))
    return value


def main() -> int:
    check = sys.argv[1:] == ["--check"]
    stale = []
    for name, make in MADE.items():
        text = json.dumps(_json(make()), ensure_ascii=False, indent=1) + "\n"
        path = FOLDER / name
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            stale.append(name)
            if not check:
                path.write_text(text, encoding="utf-8")
    for name in stale:
        print(f"{name}: {'differs' if check else 'written'}")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
