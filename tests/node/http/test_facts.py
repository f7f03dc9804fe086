"""Append, fetch and confirm over HTTP."""

from __future__ import annotations

import gzip
import json
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

import holdfast
from holdfast.node.core.engine import NodeEngine
from holdfast.node.log import serve
from holdfast.protocol.log_wire import MSGPACK, NDJSON, Batch, Fetch, decode_batch
from holdfast.rules import limits
from holdfast.rules.limits import APPEND_FACTS_MAX, COMPRESS_BYTES_MIN, LONG_POLL_MS_MAX
from holdfast.rules.vectors import Model
from holdfast.service.caller import Caller
from holdfast.storage.sqlite.consumers import ConsumerReads
from support.daemon import ask as ask_at
from support.daemon import make_home, process, running
from support.talk import Talk
from support.waiting import until

APPEND = "/v1/facts/append"
FETCH = "/v1/facts/fetch"
ID = "0197f2a0-0000-7000-8000-000000000001"
OTHER_ID = "0197f2a0-0000-7000-8000-000000000002"
FACT = {"mesh": "team", "subject": "s", "predicate": "is", "object": {"a": [1, None, "é"]}}
LONG_MS = 50_000
"""A wait that no test sits out: whoever answers sooner was woken."""


@pytest.fixture
def talk(tmp_path: Path) -> Iterator[Talk]:
    with running(make_home(tmp_path / "home")) as up:
        yield Talk(up, up.unix)


# --- Append ------------------------------------------------------------------------------------


def test_Z1_the_same_fact_again_is_answered_with_its_first_place(talk: Talk) -> None:
    first = talk.ask("POST", APPEND, {**FACT, "id": ID})
    assert first.status == 201
    assert first.json == {
        "id": ID,
        "epoch": 1,
        "offset": 1,
        "lamport": 1,
        "origin": "ana",
        "duplicate": False,
    }
    talk.append("something else")
    again = talk.ask("POST", APPEND, {**FACT, "id": ID})
    assert (again.status, again.json) == (200, {**first.json, "duplicate": True})
    assert talk.api.node.log.head().offset == 2


@pytest.mark.parametrize(
    "other",
    [{"object": 2}, {"subject": "t"}, {"predicate": "was"}, {"meta": {"a": 1}}],
    ids=lambda other: next(iter(other)),
)
def test_Z1_the_same_id_with_other_content_is_refused(talk: Talk, other: dict[str, Any]) -> None:
    talk.ask("POST", APPEND, {**FACT, "id": ID})
    before = talk.state()
    answer = talk.ask("POST", APPEND, {**FACT, "id": ID, **other})
    assert (answer.status, answer.code) == (409, "id_reused")
    assert talk.state() == before


def test_D10_the_id_comes_from_the_header_else_from_the_body_else_it_is_minted(talk: Talk) -> None:
    for key in (ID, f'"{ID}"'):
        answer = talk.ask("POST", APPEND, {**FACT, "id": OTHER_ID}, idempotency_key=key)
        assert answer.json["id"] == ID
    assert talk.ask("POST", APPEND, {**FACT, "id": OTHER_ID}).json["id"] == OTHER_ID
    minted = {talk.ask("POST", APPEND, FACT).json["id"] for _ in range(2)}
    assert len(minted) == 2
    assert talk.api.node.log.head().offset == 4


def test_Z1_what_was_appended_is_in_the_log_as_it_was_sent(talk: Talk) -> None:
    talk.ask("POST", APPEND, {**FACT, "meta": {"by": "me"}})
    talk.register()
    (entry,) = talk.fetch()["entries"]
    told = {name: entry[name] for name in (*FACT, "meta", "entity", "op", "origin")}
    assert told == {
        **FACT,
        "meta": {"by": "me"},
        "entity": "s",
        "op": "fact.append",
        "origin": "ana",
    }


@pytest.mark.parametrize(
    "value", [None, False, 0, "", [], {}, 1.5, 2**53, -(2**63), 10**40, "é\U0001f600"]
)
def test_Z1_every_json_value_may_be_an_object(talk: Talk, value: Any) -> None:
    talk.append(object=value)
    talk.register()
    assert talk.fetch()["entries"][0]["object"] == value


def test_Z1_the_mesh_may_be_left_out_where_there_is_one(talk: Talk) -> None:
    talk.append()
    talk.api.node.create_mesh("second")
    answer = talk.ask("POST", APPEND, {"subject": "s", "predicate": "is", "object": 1})
    assert (answer.status, answer.code) == (400, "bad_input")
    assert "2 meshes" in answer.json["error"]["message"]
    assert talk.ask("POST", APPEND, FACT).status == 201


MANY = [
    {"subject": "a", "predicate": "is", "object": 1, "id": ID},
    {"subject": "", "predicate": "is", "object": 1},
    {"subject": "b", "predicate": "is"},
    {"subject": "c", "predicate": "is", "object": 1, "mesh": "nowhere"},
    {"subject": "a", "predicate": "is", "object": 1, "id": ID},
    {"subject": "a", "predicate": "is", "object": 2, "id": ID},
    {"subject": "d", "predicate": "is", "object": 1, "objects": ["ab" * 32]},
    {"subject": "e", "predicate": "is", "object": 1, "surprise": 1},
    [1],
    {"subject": "f", "predicate": "is", "object": None},
]
BECAME = [
    (201, 1),
    (400, "bad_key"),
    (400, "bad_input"),
    (404, "unknown_mesh"),
    (200, 1),
    (409, "id_reused"),
    (404, "unknown_object"),
    (400, "bad_input"),
    (400, "bad_input"),
    (201, 2),
]


@pytest.mark.parametrize("form", ["list", "lines"])
def test_Z1_each_of_many_facts_has_its_own_result_in_their_order(talk: Talk, form: str) -> None:
    if form == "list":
        answer = talk.ask("POST", APPEND, {"facts": MANY})
    else:
        lines = b"\n".join(json.dumps(fact).encode() for fact in MANY)
        answer = talk.ask("POST", APPEND, b"\n" + lines + b"\r\n\n", content_type=NDJSON)
    assert answer.status == 200
    results = answer.json["results"]
    found = [
        (r["status"], r["fact"]["offset"] if "fact" in r else r["error"]["code"]) for r in results
    ]
    assert found == BECAME
    assert talk.api.node.log.head().offset == 2


def test_Z1_a_line_that_is_not_json_does_not_hold_up_the_others(talk: Talk) -> None:
    good = json.dumps(FACT).encode()
    body = b"\n".join([good, b"{", b"\xff", good])
    answer = talk.ask("POST", APPEND, body, content_type=f"{NDJSON}; charset=utf-8")
    assert [result["status"] for result in answer.json["results"]] == [201, 400, 400, 201]


def test_Z1_many_facts_share_a_few_commits_and_keep_their_order(talk: Talk) -> None:
    commits: list[None] = []
    talk.engine.store.on_commit(lambda: commits.append(None))
    talk.append_many(2500)
    assert len(commits) < 100  # of 1024 facts or 50 ms each: about five
    subjects = [entry.entity for entry in talk.api.node.log.range()]
    assert subjects == [f"s/{n}" for n in range(2500)]


def test_Z1_an_answer_means_that_it_survives_the_end_of_the_process(tmp_path: Path) -> None:
    home = make_home(tmp_path / "home")
    with process(home) as up:
        told = [
            ask_at(up.unix, "POST", APPEND, json.dumps({**FACT, "object": n}).encode()).json
            for n in range(20)
        ]
        lines = b"\n".join(json.dumps({**FACT, "object": n}).encode() for n in range(20, 120))
        many = ask_at(up.unix, "POST", APPEND, lines, headers={"content-type": NDJSON}).json
        up.kill()
    told += [result["fact"] for result in many["results"]]
    with holdfast.open(home) as node:
        kept = {entry.offset: entry.id.hex() for entry in node.log.range()}
    assert kept == {fact["offset"]: fact["id"].replace("-", "") for fact in told}


def test_Z2_a_fact_names_an_object_that_was_put_before(talk: Talk) -> None:
    sha = talk.ask("PUT", "/v1/objects", b"a picture").json["sha256"]
    talk.append("photo", objects=[sha])
    talk.register()
    assert talk.fetch()["entries"][0]["objects"] == [sha]
    refused = talk.ask("POST", APPEND, {**FACT, "objects": ["ab" * 32]})
    assert (refused.status, refused.code) == (404, "unknown_object")


# --- Fetch -------------------------------------------------------------------------------------


def test_Z2_a_fetch_begins_where_the_consumer_stands_and_repeats_until_it_confirms(
    talk: Talk,
) -> None:
    talk.append_many(5)
    talk.register()
    assert talk.offsets(limit=3) == talk.offsets(limit=3) == [1, 2, 3]
    assert talk.confirm(offset=3).status == 200
    batch = talk.fetch()
    assert [entry["offset"] for entry in batch.pop("entries")] == [4, 5]
    assert batch == {"epoch": 1, "first": 1, "head": 5, "from": 4, "upto": 5}
    talk.confirm(offset=5)
    assert talk.fetch() == {"epoch": 1, "first": 1, "head": 5, "from": 6, "upto": 5, "entries": []}


def test_Z2_a_fetch_can_be_asked_by_the_address(talk: Talk) -> None:
    talk.append_many(5)
    talk.register("a b/é")
    path = f"{FETCH}?consumer=a%20b/%C3%A9&limit=2&from=2&epoch=1&confirm=1&wait_ms=10"
    answer = talk.ask("GET", path)
    assert [entry["offset"] for entry in answer.json["entries"]] == [2, 3]
    assert talk.offsets("a b/é") == [2, 3, 4, 5]


def test_Z2_a_reader_with_its_own_place_reads_ahead_without_moving_the_consumer(
    talk: Talk,
) -> None:
    talk.append_many(6)
    talk.register()
    assert talk.offsets(start=3, epoch=1, confirm=2) == [3, 4, 5, 6]
    assert talk.offsets(start=5) == [5, 6]
    assert talk.offsets() == [3, 4, 5, 6]


def test_Z2_nodes_get_the_canonical_bytes_untouched(talk: Talk) -> None:
    talk.append_many(3)
    talk.register()
    answer = talk.ask("POST", FETCH, {"consumer": "reader"}, accept=MSGPACK)
    assert answer.headers["content-type"] == MSGPACK
    batch = decode_batch(answer.body)
    entries = list(talk.api.node.log.range())
    assert (batch.epoch, batch.first, batch.head, batch.start, batch.upto) == (1, 1, 3, 1, 3)
    assert batch.offsets == [entry.offset for entry in entries]
    assert batch.raws == [entry.raw for entry in entries]


def test_Z2_every_family_can_be_read_as_json(talk: Talk) -> None:
    mesh = talk.api.node.mesh("team")
    model = Model(provider="p", name="m", version="1", dim=2, quantization="float32")
    mesh.state.set("k", {"v": 1}, meta={"why": "because"})
    mesh.memory.set("k", "v", tags=["t"])
    mesh.vectors.store("k", [1.0, 0.5], model=model, metadata={"m": 1})
    mesh.files.share("a.txt", b"\x00content")
    task = mesh.tasks.create("title")
    mesh.tasks.claim(task.task)
    mesh.state.delete("k")
    talk.register()
    entries = talk.fetch()["entries"]
    told = {entry["op"]: entry.get("body") for entry in entries}
    assert told["state.set"] == {"value": {"v": 1}}
    assert told["memory.set"] == {"value": "v", "tags": ["t"]}
    assert told["vector.store"]["embedding"] == [1.0, 0.5]
    assert told["vector.store"]["metadata"] == {"m": 1}
    assert told["file.share"]["content"] == "AGNvbnRlbnQ="
    assert len(told["file.share"]["sha256"]) == 64
    assert told["task.create"] == {"title": "title", "description": ""}
    assert told["task.claim"] == {"generation": 0}
    assert told["state.delete"] == {}
    assert entries[0]["meta"] == {"why": "because"}
    assert [entry.get("owner") for entry in entries][:2] == [None, "ana"]


@pytest.mark.parametrize("accept", ["application/json", MSGPACK])
def test_Z2_a_large_answer_is_compressed_for_who_asks_for_it(talk: Talk, accept: str) -> None:
    talk.append(object="x" * COMPRESS_BYTES_MIN)
    talk.append(object="small")
    talk.register()

    def fetched(start: int, encoding: str) -> Any:
        asked = {"consumer": "reader", "from": start}
        return talk.ask("POST", FETCH, asked, accept=accept, accept_encoding=encoding)

    plain = fetched(1, "br, gzip;q=0.0")
    assert "content-encoding" not in plain.headers
    packed = fetched(1, "br, GZIP ; q=0.5")
    assert packed.headers["content-encoding"] == "gzip"
    assert len(packed.body) < len(plain.body) / 4
    assert gzip.decompress(packed.body) == plain.body
    assert "accept-encoding" in packed.headers["vary"]
    assert "content-encoding" not in fetched(2, "gzip").headers


# --- Waiting -----------------------------------------------------------------------------------


def test_Z2_a_long_poll_answers_at_once_when_there_is_something(talk: Talk) -> None:
    talk.append()
    talk.register()
    begun = monotonic()
    assert talk.offsets(wait_ms=LONG_MS) == [1]
    assert monotonic() - begun < LONG_MS / 2000


def test_Z2_a_long_poll_is_woken_by_what_it_waits_for(talk: Talk) -> None:
    talk.register()
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(talk.fetch, wait_ms=LONG_MS)
        until(lambda: talk.api.gate.now["poll"] == 1)
        talk.append("late")
        assert [entry["subject"] for entry in waiting.result(60)["entries"]] == ["late"]


def test_Z2_a_long_poll_is_woken_by_another_process(talk: Talk) -> None:
    talk.register()
    with ThreadPoolExecutor() as pool, holdfast.open(talk.up.home) as other:
        waiting = pool.submit(talk.fetch, wait_ms=LONG_MS)
        until(lambda: talk.api.gate.now["poll"] == 1)
        other.mesh("team").facts.append("from elsewhere", "is", 1)
        assert [entry["subject"] for entry in waiting.result(60)["entries"]] == ["from elsewhere"]


def test_Z2_a_long_poll_without_news_ends_with_an_empty_batch(talk: Talk) -> None:
    talk.register()
    begun = monotonic()
    assert talk.fetch(wait_ms=150) == {
        "epoch": 1,
        "first": 1,
        "head": 0,
        "from": 1,
        "upto": 0,
        "entries": [],
    }
    assert monotonic() - begun >= 0.15


@pytest.mark.parametrize("wait_ms", [-1, LONG_POLL_MS_MAX + 1, 10**30])
def test_Z2_a_wait_that_is_too_long_is_refused(talk: Talk, wait_ms: int) -> None:
    talk.register()
    answer = talk.ask("POST", FETCH, {"consumer": "reader", "wait_ms": wait_ms})
    assert (answer.status, answer.json["error"]["code"] in ("over_limit", "bad_input")) == (
        400,
        True,
    )


def test_Z2_those_who_wait_hold_neither_a_thread_nor_a_read(talk: Talk) -> None:
    """Far more than there are threads wait; the node works on, and all are told at once."""
    count = 3 * limits.SERVER_THREADS
    talk.register()
    with ThreadPoolExecutor(count) as pool:
        waiting = [pool.submit(talk.fetch, wait_ms=LONG_MS) for _ in range(count)]
        until(lambda: talk.api.gate.now["poll"] == count)
        assert talk.api.gate.now["call"] == 0
        # A read that is held open would keep the log of the database from being emptied.
        con = talk.api.node._opened.store._con
        until(lambda: con.wal_checkpoint(mode=3)[0] == 0)
        talk.append()
        assert {len(one.result(60)["entries"]) for one in waiting} == {1}


def test_Z2_a_waiting_call_ends_when_its_caller_goes_away(talk: Talk) -> None:
    talk.register()
    body = json.dumps({"consumer": "reader", "wait_ms": LONG_MS}).encode()
    with socket.socket(socket.AF_UNIX) as line:
        line.connect(talk.up.unix.removeprefix("unix:"))
        line.sendall(
            b"POST /v1/facts/fetch HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n"
            % len(body)
        )
        line.sendall(body)
        until(lambda: talk.api.gate.now["poll"] == 1)
    until(lambda: talk.api.gate.now["poll"] == 0)


def test_Z2_a_waiting_call_is_answered_when_the_node_stops(tmp_path: Path) -> None:
    with running(make_home(tmp_path / "home")) as up, ThreadPoolExecutor() as pool:
        talk = Talk(up, up.unix)
        talk.register()
        waiting = pool.submit(talk.fetch, wait_ms=LONG_MS)
        until(lambda: talk.api.gate.now["poll"] == 1)
        up.stop()
        assert waiting.result(60)["entries"] == []
        assert not up.overtime.is_set()


def test_Z2_a_filtered_poll_waits_on_through_what_it_is_not_given(
    talk: Talk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "PASSED_OVER_MS_MAX", LONG_MS)
    talk.api.node.create_mesh("other")
    talk.register(filter={"meshes": ["other"]})
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(talk.fetch, wait_ms=LONG_MS)
        for n in range(3):
            until(lambda: talk.api.gate.now["poll"] == 1)
            talk.append(f"not for you {n}", mesh="team")
        talk.append("for you", mesh="other")
        batch = waiting.result(60)
    assert [entry["offset"] for entry in batch["entries"]] == [4]
    assert (batch["from"], batch["upto"]) == (1, 4)


def test_Z4_a_filtered_poll_soon_says_that_it_passed_over_something(
    talk: Talk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the frontier of a link would stand still as long as nothing is for it."""
    monkeypatch.setattr(limits, "PASSED_OVER_MS_MAX", 1)
    talk.api.node.create_mesh("other")
    talk.register(filter={"meshes": ["other"]})
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(talk.fetch, wait_ms=LONG_MS)
        until(lambda: talk.api.gate.now["poll"] == 1)
        begun = monotonic()
        talk.append("not for you", mesh="team")
        batch = waiting.result(60)
    assert monotonic() - begun < LONG_MS / 2000
    assert (batch["upto"], batch["entries"]) == (1, [])


def test_Z2_a_filtered_poll_says_at_its_end_how_far_it_has_looked(talk: Talk) -> None:
    talk.api.node.create_mesh("other")
    talk.append_many(4, mesh="team")
    talk.register(filter={"meshes": ["other"]})
    batch = talk.fetch(wait_ms=50)
    assert (batch["from"], batch["upto"], batch["head"], batch["entries"]) == (1, 4, 4, [])
    talk.confirm(offset=batch["upto"])
    assert talk.fetch()["from"] == 5


def test_Z2_a_filtered_poll_that_has_looked_far_does_not_sit_on_it(
    talk: Talk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the log could not be truncated for as long as nothing passes the filter."""
    monkeypatch.setattr(limits, "SCAN_ROWS_MAX", 3)
    talk.api.node.create_mesh("other")
    talk.append_many(4, mesh="team")
    talk.register(filter={"meshes": ["other"]})
    begun = monotonic()
    batch = talk.fetch(wait_ms=LONG_MS)
    assert monotonic() - begun < LONG_MS / 2000
    assert batch["entries"] == []
    assert batch["upto"] >= 3


def test_Z2_a_confirmation_by_a_fetch_is_made_once_however_long_it_waits(
    talk: Talk, monkeypatch: pytest.MonkeyPatch
) -> None:
    talk.append_many(2)
    talk.register()
    real = serve.serve_batch
    confirms: list[int | None] = []

    def give(engine: NodeEngine, caller: Caller, fetch: Fetch) -> Batch:
        confirms.append(fetch.confirm)
        return real(engine, caller, fetch)

    monkeypatch.setattr(serve, "serve_batch", give)
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(talk.fetch, wait_ms=LONG_MS, confirm=2)
        until(lambda: talk.api.gate.now["poll"] == 1)
        talk.append()
        assert waiting.result(60)["from"] == 3
    assert confirms == [2, None]


# --- Confirm -----------------------------------------------------------------------------------


def test_Z4_a_confirmation_is_cumulative_and_backwards_it_changes_nothing(talk: Talk) -> None:
    talk.append_many(5)
    talk.register()
    assert talk.confirm(offset=4).json["frontier"] == 4
    answer = talk.confirm(offset=2)
    assert (answer.status, answer.json["frontier"]) == (200, 4)
    assert talk.offsets() == [5]


def test_Z4_ranges_are_confirmed_out_of_order_and_the_frontier_is_the_prefix(talk: Talk) -> None:
    talk.append_many(9)
    talk.register()
    told = talk.confirm(ranges=[[3, 5], [7, 8]]).json
    assert (told["frontier"], told["beyond"]) == (0, [[3, 5], [7, 8]])
    assert talk.offsets() == [1, 2, 5, 6, 8, 9]
    told = talk.confirm(ranges=[[1, 3]]).json
    assert (told["frontier"], told["beyond"], told["lag"]) == (4, [[7, 8]], 4)


def test_Z4_confirming_what_was_never_written_is_refused(talk: Talk) -> None:
    talk.append_many(3)
    talk.register()
    before = talk.state()
    for asked in ({"offset": 4}, {"ranges": [[1, 2], [3, 5]]}):
        answer = talk.confirm(**asked)
        assert (answer.status, answer.code) == (409, "past_end")
    assert talk.ask("POST", FETCH, {"consumer": "reader", "confirm": 4}).code == "past_end"
    assert talk.state() == before


def test_Z2_an_offset_of_another_epoch_is_refused_with_the_right_one(talk: Talk) -> None:
    talk.append_many(3)
    talk.register()
    before = talk.state()
    for path, asked in (
        (FETCH, {"from": 1}),
        (FETCH, {"confirm": 2}),
        ("/v1/facts/confirm", {"offset": 2}),
    ):
        answer = talk.ask("POST", path, {"consumer": "reader", "epoch": 7, **asked})
        assert (answer.status, answer.code, answer.json["error"]["epoch"]) == (
            409,
            "epoch_changed",
            1,
        )
    assert talk.state() == before


def test_Z5_who_asks_for_what_is_gone_is_told_where_there_is_something(talk: Talk) -> None:
    talk.append_many(9)
    talk.register()
    talk.truncate(5)
    for asked in ({}, {"from": 4}):
        answer = talk.ask("POST", FETCH, {"consumer": "reader", **asked})
        assert (answer.status, answer.code) == (410, "truncated")
        assert answer.json["error"]["first_available"] == 5
    assert talk.offsets(start=5)[0] == 5


# --- Many readers ------------------------------------------------------------------------------


def test_Z2_a_fetch_among_a_thousand_consumers_costs_what_it_costs_with_one(
    talk: Talk, monkeypatch: pytest.MonkeyPatch
) -> None:
    talk.append_many(10)
    for n in range(1000):
        talk.api.node.log.add_consumer(f"reader {n}")
    looked: list[int] = []
    monkeypatch.setattr(ConsumerReads, "consumer_list", lambda self: looked.append(1))
    assert len(talk.offsets("reader 500", wait_ms=LONG_MS)) == 10
    assert talk.confirm("reader 500", offset=9).status == 200
    assert talk.offsets("reader 500", confirm=9) == [10]
    talk.append()
    assert looked == []


def test_Z2_consumers_at_the_same_log_do_not_move_each_other(talk: Talk) -> None:
    talk.append_many(50)
    names = [f"reader {n}" for n in range(8)]
    for name in names:
        talk.register(name)
    failed: list[BaseException] = []

    def read_all(name: str) -> None:
        try:
            seen: list[int] = []
            while offsets := talk.offsets(name, limit=7):
                seen += offsets
                talk.confirm(name, offset=offsets[-1])
            assert seen == list(range(1, 51))
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=read_all, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []


def test_Z1_more_facts_than_a_request_may_bring_are_refused_whole(talk: Talk) -> None:
    before = talk.state()
    facts = [{"subject": "s", "predicate": "p", "object": 1}] * (APPEND_FACTS_MAX + 1)
    answer = talk.ask("POST", APPEND, {"facts": facts})
    assert (answer.status, answer.code) == (400, "over_limit")
    assert talk.state() == before


def test_D10_one_key_for_many_facts_is_refused(talk: Talk) -> None:
    before = talk.state()
    answer = talk.ask("POST", APPEND, {"facts": [FACT]}, idempotency_key=ID)
    assert (answer.status, answer.code) == (400, "bad_input")
    assert talk.state() == before
