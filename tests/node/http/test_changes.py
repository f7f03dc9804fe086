"""Writing into any family over HTTP: each change for itself, and each once."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.node.library.documents import WRITABLE
from holdfast.node.settings import Settings
from holdfast.protocol.log_wire import NDJSON
from holdfast.rules.bodies import OPS
from holdfast.rules.errors import DiskFull
from holdfast.rules.ids import id_text, uuid7
from holdfast.rules.limits import APPEND_FACTS_MAX, INLINE_BYTES_MAX
from holdfast.rules.vectors import Model, pack
from support.daemon import Plain, make_home, process, running
from support.daemon import ask as ask_at
from support.full_disk import FullDisk
from support.talk import Talk

CHANGES = "/v1/changes"
BATCH = "/v1/meshes/team/batch"
MODEL = {"provider": "p", "name": "m", "version": "1"}
THE_MODEL = Model(provider="p", name="m", version="1", dim=2)


def id_of(number: int) -> str:
    return id_text(uuid7(1_763_000_000_000 + number, number.to_bytes(10, "big")))


def change(number: int, op: str, entity: str | None = "k", **more: Any) -> dict[str, Any]:
    named = {} if entity is None else {"entity": entity}
    return {"id": id_of(number), "mesh": "team", "op": op, **named, **more}


TASK, OTHER_TASK = id_of(20), id_of(21)
EVERY = [
    change(1, "state.set", value={"a": [1, None, "é"]}, meta={"why": "so"}),
    change(2, "state.set", "gone", value=None),
    change(3, "state.delete", "gone"),
    change(4, "memory.set", value=1, tags=["t"]),
    change(5, "memory.set", "other", value=2, owner="ana"),
    change(6, "memory.set", "gone", value=2),
    change(7, "memory.forget", "gone", owner="ana"),
    change(
        *(8, "vector.store"),
        model=MODEL,
        embedding=[1, 0.5],
        content="text",
        metadata={"m": 1},
    ),
    change(
        *(9, "vector.store", "other"),
        model={**MODEL, "dim": 2},
        embedding=base64.b64encode(pack([0.5, 1.0], 2)).decode(),
        owner="ana",
    ),
    change(10, "vector.store", "gone", model=MODEL, embedding=[1, 1]),
    change(11, "vector.delete", "gone", model={**MODEL, "dim": 2}),
    change(12, "file.share", "a.txt", data=base64.b64encode(b"\0content").decode()),
    change(13, "file.share", "gone.txt", data=""),
    change(14, "file.delete", "gone.txt"),
    change(15, "fact.append", "s", predicate="is", object=None, meta={"by": "me"}),
    change(20, "task.create", None, title="one", description="more"),
    change(21, "task.create", None, title="two"),
    change(22, "task.claim", TASK),
    change(23, "task.release", TASK),
    change(24, "task.claim", TASK),
    change(25, "task.complete", TASK),
    change(26, "task.cancel", OTHER_TASK),
    change(29, "audit.append", "activityLog", value={"did": "deploy"}),
]


@pytest.fixture
def talk(tmp_path: Path) -> Iterator[Talk]:
    with running(make_home(tmp_path / "home")) as up:
        yield Talk(up, up.unix)


def send(talk: Talk, *changes: Any) -> list[dict[str, Any]]:
    answer = talk.ask("POST", CHANGES, {"changes": changes})
    assert answer.status == 200, answer
    return list(answer.json["results"])


def became(results: list[dict[str, Any]]) -> list[Any]:
    return [r["error"]["code"] if "error" in r else r["status"] for r in results]


def test_P8_every_op_is_written_as_the_library_would(talk: Talk) -> None:
    assert {one["op"] for one in EVERY} == set(WRITABLE) == OPS - {"message.send"}
    results = send(talk, *EVERY)
    assert became(results) == [201] * len(EVERY)
    assert [(r["id"], r["offset"], r["lamport"], r["duplicate"]) for r in results] == [
        (one["id"], n, n, False) for n, one in enumerate(EVERY, 1)
    ]
    mesh = talk.api.node.mesh("team")
    assert [(e.key, e.value) for e in mesh.state.list()] == [("k", {"a": [1, None, "é"]})]
    remembered = [(m.peer, m.value, tuple(m.tags)) for m in mesh.memory.recall("k", scope="all")]
    assert sorted(remembered) == [("ana", 1, ("t",))]
    other = mesh.memory.get("other")
    assert other is not None
    assert other.value == 2
    hits = mesh.vectors.search([1.0, 0.5], model=THE_MODEL)
    assert [(h.peer, h.key, h.content, h.metadata) for h in hits] == [
        ("ana", "k", "text", {"m": 1}),
        ("ana", "other", "", None),
    ]
    assert mesh.files.read("a.txt") == b"\0content"
    assert [f.path for f in mesh.files.list()] == ["a.txt"]
    assert [(t.task, t.title, t.status.value) for t in mesh.tasks.list()] == [
        (TASK, "one", "completed"),
        (OTHER_TASK, "two", "cancelled"),
    ]
    assert [event.payload for event in mesh.audit.list("activityLog")] == [{"did": "deploy"}]
    assert len(list(talk.api.node.log.range())) == len(EVERY)


def test_P8_the_same_again_changes_nothing_and_tells_the_first_places(talk: Talk) -> None:
    first = send(talk, *EVERY)
    before = talk.state()
    again = send(talk, *EVERY)
    assert again == [{**r, "status": 200, "duplicate": True} for r in first]
    assert talk.state() == before


@pytest.mark.parametrize(
    ("number", "other"),
    [
        (1, {"value": 2}),
        (1, {"entity": "other"}),
        (1, {"meta": {}}),
        (3, {"entity": "k"}),
        (4, {"tags": []}),
        (8, {"content": "else"}),
        (20, {"title": "else"}),
        (15, {"mesh": "second"}),
    ],
)
def test_P8_the_same_id_with_other_content_is_refused(
    talk: Talk, number: int, other: dict[str, Any]
) -> None:
    talk.api.node.create_mesh("second")
    send(talk, *EVERY)
    before = talk.state()
    one = next(one for one in EVERY if one["id"] == id_of(number))
    assert became(send(talk, {**one, **other})) == ["id_reused"]
    assert talk.state() == before


def test_U4_a_change_that_expects_another_stamp_is_told_the_present_one(talk: Talk) -> None:
    first = change(1, "state.set", value=1, expect="absent")
    second = change(2, "state.set", value=2, expect="absent")
    written, refused = send(talk, first, second)
    assert (written["status"], refused["status"]) == (201, 409)
    assert (refused["error"]["code"], refused["error"]["present"]) == ("stamp_moved", "1@ana")
    assert send(talk, first)[0]["duplicate"] is True


REFUSED: list[tuple[Any, str]] = [
    ({"op": "state.set", "mesh": "team", "entity": "k", "value": 1}, "bad_input"),  # no id
    ({"op": "state.set", "id": id_of(50), "entity": "k", "value": 1}, "bad_input"),  # no mesh
    (change(51, "state.set", value=1) | {"id": "7d444840-9dc0-11d1-b245-5ffdce74fad2"}, "bad_id"),
    (change(52, "state.set"), "bad_input"),
    (change(53, "state.set", None, value=1), "bad_input"),
    (change(54, "state.set", "", value=1), "bad_key"),
    (change(55, "state.set", value=1, surprise=1), "bad_input"),
    (change(56, "state.set", value=1, predicate="p"), "bad_input"),
    (change(57, "state.set", value=1, owner="bea"), "bad_input"),
    (change(58, "state.delete", value=None), "bad_input"),
    (change(59, "state.delete", "nowhere"), "unknown_key"),
    (change(60, "memory.forget", "nowhere"), "unknown_key"),
    (change(90, "state.set", value=1, expect="7@bea"), "stamp_moved"),
    (change(91, "memory.forget", expect="seven"), "bad_input"),
    (change(92, "file.delete", "a.txt", expect="7@ana"), "bad_input"),
    (change(61, "memory.forget", "k", owner="bea"), "not_ours"),
    (change(64, "memory.set", value=1, owner="bea"), "not_ours"),
    (change(65, "file.share", "a", data="", owner="bea"), "not_ours"),
    (change(66, "vector.delete", model={**MODEL, "dim": 2}, owner="bea"), "not_ours"),
    (change(62, "memory.set", value=1, owner="a\n"), "bad_peer_id"),
    (change(63, "memory.set", value=1, owner=""), "bad_peer_id"),
    (change(64, "vector.delete", "nowhere", model={**MODEL, "dim": 2}), "unknown_key"),
    (change(65, "vector.delete", "nowhere", model=MODEL), "bad_input"),
    (change(66, "vector.store", embedding=[1.0]), "bad_input"),
    (change(67, "vector.store", model={**MODEL, "dim": 3}, embedding=[1.0]), "bad_vector"),
    (change(68, "vector.store", model=MODEL, embedding=[]), "bad_vector"),
    (change(69, "vector.store", model=MODEL, embedding="!"), "bad_input"),
    (change(70, "file.delete", "nowhere"), "unknown_file"),
    (change(71, "file.share", "../x", data=""), "bad_path"),
    (
        change(72, "file.share", "x", data=base64.b64encode(bytes(INLINE_BYTES_MAX)).decode()),
        "over_limit",
    ),
    (change(73, "task.create", "named", title="t"), "bad_input"),
    (change(74, "task.create", None, title=""), "bad_value"),
    (change(75, "task.claim", id_of(76)), "unknown_task"),
    (change(77, "fact.append", "s", predicate="p"), "bad_input"),
    (change(78, "fact.append", "s", predicate="", object=1), "bad_key"),
    (
        change(79, "fact.append", "s", predicate="p", object=1, objects=["ab" * 32]),
        "unknown_object",
    ),
    (change(80, "state.set", value=1, mesh="nowhere"), "unknown_mesh"),
    (change(81, "log.truncate"), "bad_input"),
    ([1], "bad_input"),
    (None, "bad_input"),
]


@pytest.mark.parametrize("form", ["list", "lines"])
def test_P8_one_that_is_refused_says_why_and_does_not_hold_up_the_others(
    talk: Talk, form: str
) -> None:
    good = [change(n, "state.set", f"k{n}", value=n) for n in range(100, 101 + len(REFUSED))]
    mixed = [one for pair in zip(good, (bad for bad, _ in REFUSED), strict=False) for one in pair]
    mixed.append(good[-1])
    if form == "list":
        results = send(talk, *mixed)
    else:
        lines = b"\n".join(json.dumps(one).encode() for one in mixed)
        answer = talk.ask("POST", CHANGES, b"\n" + lines + b"\r\n\n", content_type=NDJSON)
        results = answer.json["results"]
    expected: list[Any] = [part for _, code in REFUSED for part in (201, code)]
    assert became(results) == [*expected, 201]
    assert talk.api.node.log.head().offset == len(good)
    assert all(r["error"]["message"] for r in results if "error" in r)


def test_P8_a_turn_on_a_task_is_refused_by_where_the_task_stands(talk: Talk) -> None:
    send(talk, *EVERY)
    assert became(
        send(
            talk,
            change(30, "task.claim", TASK),
            change(31, "task.create", None, title="three"),
            change(32, "task.complete", id_of(31)),
        )
    ) == ["task_ended", 201, "task_taken"]


def test_P8_later_changes_see_the_earlier_ones_of_their_batch(talk: Talk) -> None:
    batch = [
        change(1, "state.set", value=1),
        change(2, "state.delete"),
        change(3, "state.delete"),
        change(4, "state.set", value=2),
    ]
    assert became(send(talk, *batch)) == [201, 201, "unknown_key", 201]
    # The one that was refused is tried again, and now there is something to delete.
    assert became(send(talk, *batch)) == [200, 200, 201, 200]


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"{}", b'{"changes":1}', b'{"changes":[],"more":1}', b"null"]
)
def test_P8_a_body_that_is_no_batch_is_refused_whole(talk: Talk, body: bytes) -> None:
    answer = talk.ask("POST", CHANGES, body)
    assert (answer.status, answer.code) == (400, "bad_input")


def test_P8_more_changes_than_a_request_may_bring_are_refused_whole(talk: Talk) -> None:
    lines = b"\n".join([b"{}"] * (APPEND_FACTS_MAX + 1))
    answer = talk.ask("POST", CHANGES, lines, content_type=NDJSON)
    assert (answer.status, answer.code) == (400, "over_limit")


def test_P8_only_the_nodes_own_user_writes(tmp_path: Path) -> None:
    with running(make_home(tmp_path / "home"), Settings(tcp="127.0.0.1:0")) as up:
        body = json.dumps({"changes": EVERY[:1]}).encode()
        reader = up.daemon.api.trust.add_token("reader", reads=["*"])
        writer = up.daemon.api.trust.add_token("writer")

        def ask(token: str | None) -> Plain:
            return ask_at(up.tcp, "POST", CHANGES, body, token=token)

        assert ask(None).code == "bad_token"
        assert ask(reader).code == "not_granted"
        assert up.daemon.api.node.log.head().offset == 0
        assert became(ask(writer).json["results"]) == [201]


def test_P8_while_the_disk_is_full_only_deletions_get_in(talk: Talk) -> None:
    send(talk, change(1, "state.set", value=1))

    def full() -> None:
        raise DiskFull("the disk is full")

    talk.engine.admit = full
    results = send(talk, change(2, "state.set", "other", value=1), change(3, "state.delete"))
    assert became(results) == ["disk_full", 201]


def test_P8_a_deletion_that_meets_a_full_disk_is_run_again(talk: Talk) -> None:
    send(talk, change(1, "state.set", value=1))
    relieve = talk.engine.relieve
    try:
        disk = FullDisk(talk.engine)
        results = send(talk, change(2, "state.delete"), change(3, "state.set", "other", value=1))
        assert became(results) == [201, "disk_full"]
        assert disk.tries == 2
    finally:
        talk.engine.relieve = relieve


def test_P8_changes_are_counted_by_their_ops(talk: Talk) -> None:
    send(talk, *EVERY)
    counts = {name: verb.count for name, verb in talk.engine.metrics.verbs.items()}
    for op in {change["op"] for change in EVERY}:
        assert counts[op] == sum(change["op"] == op for change in EVERY), op


def test_P8_many_changes_share_a_few_commits(talk: Talk) -> None:
    commits: list[None] = []
    talk.engine.store.on_commit(lambda: commits.append(None))
    results = send(talk, *(change(n, "memory.set", f"k{n}", value=n) for n in range(2500)))
    assert became(results) == [201] * 2500
    assert len(commits) < 100


def test_P8_an_answer_means_that_it_survives_the_end_of_the_process(tmp_path: Path) -> None:
    home = make_home(tmp_path / "home")
    with process(home) as up:
        body = json.dumps({"changes": EVERY}).encode()
        results = ask_at(up.unix, "POST", CHANGES, body).json["results"]
        up.kill()
    with holdfast.open(home) as node:
        kept = [id_text(entry.id) for entry in node.log.range()]
    assert kept == [r["id"] for r in results]


# --- together ----------------------------------------------------------------------------------


def test_U4_a_batch_is_written_together_and_again_it_answers_the_same(talk: Talk) -> None:
    changes = [{k: v for k, v in one.items() if k not in ("mesh",)} for one in EVERY]
    first = talk.ask("POST", BATCH, {"changes": changes})
    assert first.status == 201, first
    receipts = first.json["receipts"]
    assert [(r["id"], r["offset"], r["duplicate"]) for r in receipts] == [
        (one["id"], n, False) for n, one in enumerate(EVERY, 1)
    ]
    again = talk.ask("POST", BATCH, {"changes": changes})
    assert again.status == 200
    repeated = [{**r, "duplicate": True, "outcome": "noop_already_applied"} for r in receipts]
    assert again.json == {"mesh": "team", "receipts": repeated}


def test_U4_a_batch_with_a_key_needs_no_ids(talk: Talk) -> None:
    lines = b"\n".join(
        json.dumps({"op": "state.set", "entity": f"k{n}", "value": n}).encode() for n in range(3)
    )
    headers = {"content_type": NDJSON, "idempotency_key": "release 7"}
    first, again = (talk.ask("POST", BATCH, lines, **headers) for _ in range(2))
    assert (first.status, again.status) == (201, 200)
    ids = [[r["id"] for r in answer.json["receipts"]] for answer in (first, again)]
    assert ids[0] == ids[1]
    assert len(set(ids[0])) == 3


REFUSED_BATCHES: list[tuple[dict[str, Any], int, str]] = [
    ({"op": "state.delete", "entity": "nowhere"}, 404, "change 2 of the batch (state.delete"),
    ({"op": "state.set", "entity": "k", "value": 2, "expect": "absent"}, 409, "is at 1@ana"),
    ({"op": "state.set", "entity": "k"}, 400, "change 2 of the batch: state.set needs value"),
    ({"op": "state.set", "entity": "k", "value": 1, "mesh": "other"}, 400, "for the mesh 'other'"),
    ({"op": "state.set", "entity": "k", "value": 1, "surprise": 1}, 400, "does not fit"),
    ({"op": "file.share", "entity": "f"}, 400, "needs data"),
]


@pytest.mark.parametrize(("change", "status", "said"), REFUSED_BATCHES)
def test_U4_a_refused_change_refuses_the_batch_and_is_named(
    talk: Talk, change: dict[str, Any], status: int, said: str
) -> None:
    before = talk.state()
    well = {"op": "state.set", "entity": "k", "value": 1}
    answer = talk.ask("POST", BATCH, {"changes": [well, change, well]})
    assert answer.status == status, answer
    assert said in answer.json["error"]["message"]
    assert "nothing was written" in answer.json["error"]["message"]
    assert talk.state() == before


def test_U4_a_batch_must_hold_something_and_belong_to_a_mesh(talk: Talk) -> None:
    assert talk.ask("POST", BATCH, {"changes": []}).json["error"]["code"] == "bad_input"
    nowhere = talk.ask("POST", "/v1/meshes/nowhere/batch", {"changes": []})
    assert (nowhere.status, nowhere.json["error"]["code"]) == (404, "unknown_mesh")
