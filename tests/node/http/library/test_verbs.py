"""Every family over plain HTTP: pages, lines, ids, warnings, who may do what."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.node.settings import Settings
from holdfast.protocol.log_wire import NDJSON
from holdfast.rules.ids import id_text
from holdfast.rules.limits import CALL_PAGE_BYTES, CALL_PAGE_ROWS, INLINE_BYTES_MAX
from holdfast.rules.rows import WarningRow
from support.daemon import Plain, UpInThread, ask, make_home, running
from support.envelopes import make_id, state_set

TEAM = "/v1/meshes/team"


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UpInThread]:
    """One daemon for all tests here: each has keys of its own."""
    home = make_home(tmp_path_factory.mktemp("families") / "home", "ana", "team", "secret")
    with running(home, Settings(tcp="127.0.0.1:0")) as started:
        yield started


def call(up: UpInThread, method: str, path: str, body: Any = None, **more: Any) -> Plain:
    raw = body if isinstance(body, bytes | None) else json.dumps(body).encode()
    return ask(up.unix, method, path, raw, **more)


def test_U4_a_value_is_written_read_listed_and_deleted(up: UpInThread) -> None:
    """Keys may hold anything, as they may in the library."""
    for key, shown in (("a b/c", "a%20b/c"), ("straße?", "stra%C3%9Fe%3F")):
        done = call(up, "PUT", f"{TEAM}/state/{shown}", {"value": {"n": [1, None]}})
        assert (done.status, done.json["duplicate"]) == (200, False)
        found = call(up, "GET", f"{TEAM}/state/{shown}")
        assert (found.json["key"], found.json["value"]) == (key, {"n": [1, None]})
        assert found.json["lamport"] == done.json["lamport"]
        assert call(up, "DELETE", f"{TEAM}/state/{shown}").status == 200
        gone = call(up, "GET", f"{TEAM}/state/{shown}")
        assert (gone.status, gone.code) == (404, "unknown_key")
        at = f"offset={done.json['offset']}"
        past = call(up, "GET", f"{TEAM}/as-of/state?{at}")
        assert {"n": [1, None]} in [row["value"] for row in past.json["items"]]


def test_U4_pages_follow_each_other_without_gap_or_repeat(up: UpInThread) -> None:
    keys = [f"page/{number:03}" for number in range(25)]
    for key in keys:
        call(up, "PUT", f"{TEAM}/state/{key}", {"value": 1})
        call(up, "PUT", f"{TEAM}/memory/{key}", {"value": 1})
        call(up, "PUT", f"{TEAM}/files/{key}", b"x")
    for path, named in (("state", "key"), ("memory", "key"), ("files", "path")):
        found, after, pages = [], "", 0
        while True:
            asked = f"{TEAM}/{path}?limit=10{after}"
            page = call(up, "GET", asked).json
            found += [row[named] for row in page["items"]]
            pages += 1
            if page["next"] is None:
                break
            after = f"&after={page['next']}".replace("\t", "%09")
        assert [key for key in found if key in keys] == keys
        assert len(found) == len(set(found))
        assert pages == -(-len(found) // 10)
    bad = call(up, "GET", f"{TEAM}/memory?after=nowhere")
    assert (bad.status, bad.code) == (400, "bad_input")
    for limit in ("0", str(CALL_PAGE_ROWS + 1), "x"):
        assert call(up, "GET", f"{TEAM}/state?limit={limit}").status == 400


def test_U4_a_page_ends_when_its_rows_are_large(up: UpInThread) -> None:
    large = "x" * (CALL_PAGE_BYTES // 4)
    for number in range(8):
        call(up, "PUT", f"{TEAM}/state/large/{number}", {"value": large})
    page = call(up, "GET", f"{TEAM}/state?prefix=large/")
    assert len(page.body) < 2 * CALL_PAGE_BYTES
    assert page.json["next"] is not None
    rest = call(up, "GET", f"{TEAM}/state?prefix=large/&after={page.json['next']}")
    keys = [row["key"] for row in (*page.json["items"], *rest.json["items"])]
    assert keys == [f"large/{number}" for number in range(8)]


def test_U4_long_reads_come_line_by_line_for_who_accepts_that(up: UpInThread) -> None:
    for number in range(3):
        call(up, "PUT", f"{TEAM}/state/lines/{number}", {"value": number})
    lines = {"accept": NDJSON}
    answer = call(up, "GET", f"{TEAM}/state?prefix=lines/", headers=lines)
    assert answer.headers["content-type"] == NDJSON
    assert [json.loads(line)["value"] for line in answer.body.splitlines()] == [0, 1, 2]
    two = call(up, "GET", f"{TEAM}/state?prefix=lines/&limit=2", headers=lines)
    assert len(two.body.splitlines()) == 2
    none = call(up, "GET", f"{TEAM}/state?prefix=none/", headers=lines)
    assert (none.status, none.body) == (200, b"")
    assert call(up, "GET", f"{TEAM}/state?limit=x", headers=lines).status == 400
    assert call(up, "GET", f"{TEAM}/as-of/state", headers=lines).status == 400


def test_D3_a_write_that_is_sent_again_is_written_once(up: UpInThread) -> None:
    """Under an id, or under any text in the Idempotency-Key."""
    for named in (
        {"headers": {"idempotency-key": "deploy 7"}},
        {"headers": {"idempotency-key": '"01a1effb-5a14-7544-9893-6c376cfe8516"'}},
    ):
        first = call(up, "PUT", f"{TEAM}/state/once", {"value": 1}, **named)
        again = call(up, "PUT", f"{TEAM}/state/once", {"value": 1}, **named)
        assert (first.json["duplicate"], again.json["duplicate"]) == (False, True)
        assert again.json["offset"] == first.json["offset"]
        other = call(up, "PUT", f"{TEAM}/state/once", {"value": 2}, **named)
        assert (other.status, other.code) == (409, "id_reused")
    gone = [call(up, "DELETE", f"{TEAM}/state/once?id={first.json['id'][:-1]}0") for _ in "ab"]
    assert [answer.json["duplicate"] for answer in gone] == [False, True]


def test_S6_a_write_that_expects_a_stamp_is_refused_where_another_stands(up: UpInThread) -> None:
    """In a field, in the query, or by the ETag in a header."""
    path = f"{TEAM}/state/expected"
    made = call(up, "PUT", path, {"value": 1}, headers={"if-none-match": "*"})
    assert made.status == 200
    twice = call(up, "PUT", path, {"value": 2, "expect": "absent"})
    assert (twice.status, twice.code) == (409, "stamp_moved")
    read = call(up, "GET", path)
    tag, stamp = read.headers["etag"], f"{read.json['lamport']}@ana"
    assert (tag, twice.json["error"]["present"]) == (f'"{stamp}"', stamp)
    assert call(up, "GET", path, headers={"if-none-match": tag}).status == 304
    assert call(up, "PUT", path, {"value": 3}, headers={"if-match": tag}).status == 200
    for stale in (
        call(up, "PUT", path, {"value": 4}, headers={"if-match": tag}),
        call(up, "PUT", path, {"value": 4, "expect": stamp}),
        call(up, "DELETE", f"{path}?expect={stamp}"),
    ):
        assert (stale.status, stale.code) == (409, "stamp_moved")
    changed = call(up, "GET", path, headers={"if-none-match": tag})
    assert (changed.status, changed.json["value"]) == (200, 3)
    for odd in ("12@ana", '"12"', "*", '"x", "y"'):
        assert call(up, "PUT", path, {"value": 5}, headers={"if-match": odd}).status == 400
    assert call(up, "PUT", path, {"value": 5}, headers={"if-none-match": tag}).status == 400
    now = call(up, "GET", path).headers["etag"]
    assert call(up, "DELETE", path, headers={"if-match": now}).status == 200


def test_S6_a_condition_that_a_call_does_not_look_at_is_refused_and_not_passed_over(
    up: UpInThread,
) -> None:
    """A file has an ETag too: whoever sends it back would take the write for a conditional one."""
    tag = call(up, "PUT", f"{TEAM}/files/conditional", b"one").headers.get("etag", '"1"')
    for name, value in (
        ("if-match", tag),
        ("if-none-match", "*"),
        ("if-unmodified-since", "Wed, 18 Nov 2026 20:00:00 GMT"),
    ):
        for method, path, body in (
            ("PUT", f"{TEAM}/files/conditional", b"two"),
            ("DELETE", f"{TEAM}/files/conditional", None),
            ("POST", f"{TEAM}/tasks", b'{"title":"t"}'),
            ("POST", "/v1/changes", b'{"changes":[]}'),
        ):
            refused = call(up, method, path, body, headers={name: value})
            assert (refused.status, refused.code) == (400, "bad_input"), (name, method, path)
            assert name in refused.json["error"]["message"].lower()
    assert call(up, "GET", f"{TEAM}/files/conditional").body == b"one"
    unmodified = {"if-unmodified-since": "Wed, 18 Nov 2026 20:00:00 GMT"}
    assert call(up, "PUT", f"{TEAM}/state/cond", {"value": 1}, headers=unmodified).status == 400


def test_D3_one_write_is_not_named_or_bound_in_two_ways(up: UpInThread) -> None:
    """Which one counts would be a guess; the same said twice is no contradiction."""
    one, other = id_text(make_id(701)), id_text(make_id(702))
    for method, path, body in (
        ("PUT", "state/twofold", {"value": 1, "id": one}),
        ("DELETE", f"state/twofold?id={one}", None),
        ("PUT", f"files/twofold?id={one}", b"x"),
    ):
        refused = call(up, method, f"{TEAM}/{path}", body, headers={"idempotency-key": other})
        assert (refused.status, refused.code) == (400, "bad_input"), path
    said = {"value": 1, "id": one, "expect": "absent"}
    bound = call(up, "PUT", f"{TEAM}/state/twofold", said, headers={"if-match": '"1@ana"'})
    assert (bound.status, bound.code) == (400, "bad_input")
    both = {"idempotency-key": one, "if-none-match": "*"}
    assert call(up, "PUT", f"{TEAM}/state/twofold", said, headers=both).status == 200


def test_S10_warnings_come_with_the_answer_to_a_write_once(up: UpInThread) -> None:
    def warn() -> None:
        row = WarningRow(mesh="team", type="superseded", entity="t", by_peer="bo", at_lamport=1)
        up.daemon.api.engine.write("test", lambda tx: tx.warning_add(row))

    warn()
    kept = call(up, "PUT", f"{TEAM}/state/warned?warnings=keep", {"value": 1})
    told = call(up, "PUT", f"{TEAM}/state/warned", {"value": 2})
    after = call(up, "PUT", f"{TEAM}/state/warned", {"value": 3})
    assert [len(answer.json["warnings"]) for answer in (kept, told, after)] == [0, 1, 0]
    assert told.json["warnings"][0]["entity"] == "t"
    warn()
    assert len(call(up, "POST", "/v1/warnings/take").json["items"]) == 1
    head = up.daemon.api.node.log.head().offset
    for odd in ("warnings=all", "warnings=keep&warnings=keep"):
        for path, body in (("state/warned", {"value": 1}), ("files/warned", b"x")):
            assert call(up, "PUT", f"{TEAM}/{path}?{odd}", body).status == 400
    assert up.daemon.api.node.log.head().offset == head, "what is refused is not written"


def test_U4_a_token_for_reading_reads_its_meshes_and_writes_nothing(up: UpInThread) -> None:
    trust = up.daemon.api.trust
    reader, everything = trust.add_token("reader", reads=["team"]), trust.add_token("own")
    call(up, "PUT", f"{TEAM}/state/seen", {"value": 1})
    call(up, "PUT", "/v1/meshes/secret/state/seen", {"value": 1})

    def as_(token: str, method: str, path: str, body: bytes | None = None) -> Plain:
        return ask(up.tcp, method, path, body, token=token)

    assert as_(reader, "GET", f"{TEAM}/state/seen").json["value"] == 1
    for path in ("state/seen", "state", "clock", "memory", "tasks", "files", "models", "files/a"):
        refused = as_(reader, "GET", f"/v1/meshes/secret/{path}")
        assert (refused.status, refused.code) == (403, "not_granted"), path
    assert as_(reader, "GET", "/v1/meshes/none/state").status == 403, "not even whether it is there"
    assert [row["slug"] for row in as_(reader, "GET", "/v1/meshes").json["items"]] == ["team"]
    query = b'{"query":[1],"model":{"provider":"p","name":"m"}}'
    assert as_(reader, "POST", f"{TEAM}/vector-search", query).status == 200
    for method, path, body in (
        ("PUT", "state/seen", b'{"value":2}'),
        ("DELETE", "state/seen", None),
        ("PUT", "files/a", b"x"),
        ("POST", "tasks", b'{"title":"x"}'),
        ("GET", "members", None),
    ):
        refused = as_(reader, method, f"{TEAM}/{path}", body)
        assert (refused.status, refused.code) == (403, "not_granted"), path
    assert as_(everything, "PUT", f"{TEAM}/state/seen", b'{"value":2}').status == 200
    assert ask(up.tcp, "GET", f"{TEAM}/state/seen").status == 401


def test_S6_a_conflict_is_shown_to_who_may_read_its_mesh_and_restored(tmp_path: Path) -> None:
    home = make_home(tmp_path / "home", "ana", "team", "secret")
    ids = {"team": make_id(7), "secret": make_id(8)}
    with holdfast.open(home) as node:
        for mesh in ("team", "secret"):
            node.mesh(mesh).state.set("k", "mine")
            node.apply([state_set("k", "theirs", mesh=mesh, lamport=9, origin="bo", id=ids[mesh])])
    with running(home, Settings(tcp="127.0.0.1:0")) as up:
        rows = call(up, "GET", "/v1/conflicts").json["items"]
        assert [row["mesh"] for row in rows] == ["team", "secret"]
        assert rows[0]["loser_body"] == {"value": "mine"}
        reader = up.daemon.api.trust.add_token("reader", reads=["team"])
        seen = ask(up.tcp, "GET", "/v1/conflicts", token=reader).json["items"]
        assert [row["mesh"] for row in seen] == ["team"]
        hidden = rows[1]["number"]
        assert ask(up.tcp, "GET", f"/v1/conflicts/{hidden}", token=reader).status == 403
        number = rows[0]["number"]
        assert call(up, "POST", f"/v1/conflicts/{number}/restore").status == 200
        assert call(up, "GET", f"{TEAM}/state/k").json["value"] == "mine"
        again = call(up, "POST", f"/v1/conflicts/{number}/restore")
        assert (again.status, again.code) == (409, "already_resolved")
        assert call(up, "POST", f"/v1/conflicts/{hidden}/dismiss").status == 204
        assert call(up, "GET", "/v1/conflicts").json["items"] == []
        assert len(call(up, "GET", "/v1/conflicts?open_only=false").json["items"]) == 2


@pytest.mark.parametrize("size", [0, 10, INLINE_BYTES_MAX - 1, INLINE_BYTES_MAX, 300_000])
def test_S9_a_file_travels_as_it_is_and_in_parts(up: UpInThread, size: int) -> None:
    content = bytes(number % 251 for number in range(size))
    path = f"{TEAM}/files/blobs/{size}.bin"
    done = call(up, "PUT", path, content)
    assert done.status == 200, done
    whole = call(up, "GET", path)
    assert whole.body == content
    info = call(up, "GET", f"{TEAM}/file-info/blobs/{size}.bin").json
    assert (info["size"], info["here"]) == (size, True)
    assert whole.headers["etag"] == f'"{info["sha256"]}"'
    known = call(up, "GET", f"{TEAM}/file-last-known/blobs/{size}.bin")
    assert (known.body, known.headers["holdfast-status"]) == (content, "fresh")
    unchanged = call(up, "GET", path, headers={"if-none-match": whole.headers["etag"]})
    assert (unchanged.status, unchanged.body) == (304, b"")
    part = call(up, "GET", path, headers={"range": "bytes=3-7"})
    if size:
        assert (part.status, part.body) == (206, content[3:8])
        assert part.headers["content-range"] == f"bytes 3-7/{size}"
    else:
        assert (part.status, part.code) == (416, "bad_range")
    assert call(up, "DELETE", path).status == 200
    assert call(up, "GET", path).code == "unknown_file"


def test_S9_the_same_share_again_is_one_share(up: UpInThread) -> None:
    key = {"idempotency-key": "share 1"}
    first, again = (call(up, "PUT", f"{TEAM}/files/once", b"x" * 70_000, headers=key) for _ in "ab")
    assert (first.json["duplicate"], again.json["duplicate"]) == (False, True)
    assert call(up, "PUT", f"{TEAM}/files/once", b"other", headers=key).code == "id_reused"
    assert call(up, "PUT", f"{TEAM}/files/../up", b"x").code == "bad_path"
    assert call(up, "PUT", "/v1/meshes/none/files/a", b"x").code == "unknown_mesh"


@pytest.mark.parametrize("odd", ["caf%e9", "%ff", "%c0%af", "%ed%a0%80"])
def test_U4_a_path_that_is_no_utf_8_is_refused(up: UpInThread, odd: str) -> None:
    """Each such byte became the same sign: two keys in another encoding were one."""
    for path, body in (("state", {"value": 1}), ("memory", {"value": 1}), ("files", b"x")):
        refused = call(up, "PUT", f"{TEAM}/{path}/{odd}", body)
        assert (refused.status, refused.code) == (400, "bad_input")
        assert "UTF-8" in refused.json["error"]["message"]
    assert call(up, "GET", f"{TEAM}/state/{odd}").code == "bad_input"
    assert call(up, "PUT", f"{TEAM}/state/100%25%EF%BF%BD", {"value": 1}).status == 200


def test_U4_what_is_wrong_is_said_and_nothing_is_written(up: UpInThread) -> None:
    head = up.daemon.api.node.log.head().offset
    for method, path, body, code in (
        ("PUT", f"{TEAM}/state/k", b"", "bad_input"),
        ("PUT", f"{TEAM}/state/k", b'{"value":1,"value":2}', "bad_input"),
        ("PUT", f"{TEAM}/state/k", b'{"value":1,"expires":2}', "bad_input"),
        ("PUT", f"{TEAM}/state/k", b'{"value":NaN}', "bad_input"),
        ("PUT", f"{TEAM}/state/k?id=x", b'{"value":1}', "bad_input"),
        ("PUT", f"{TEAM}/state/", b'{"value":1}', "bad_key"),
        ("PUT", f"{TEAM}/state/k", b'{"value":1,"id":"x"}', "bad_id"),
        ("PUT", "/v1/meshes/none/state/k", b'{"value":1}', "unknown_mesh"),
        ("GET", "/v1/meshes/none/state/k", None, "unknown_mesh"),
        ("GET", f"{TEAM}/tasks/none", None, "unknown_task"),
        ("GET", f"{TEAM}/tasks?status=odd", None, "bad_input"),
        ("POST", f"{TEAM}/tasks/none/claim", None, "unknown_task"),
        ("POST", f"{TEAM}/tasks", b'{"title":""}', "bad_value"),
        ("DELETE", f"{TEAM}/vectors/k?model=p:m", None, "bad_vector"),
        ("DELETE", f"{TEAM}/vectors/k", None, "bad_input"),
        ("GET", f"{TEAM}/memory/k?scope=mine", None, "bad_input"),
        ("GET", "/v1/conflicts/x", None, "bad_input"),
        ("POST", "/v1/meshes", b'{"slug":"team"}', "already_exists"),
        ("POST", f"{TEAM}/leave", None, "not_shared"),
    ):
        answer = ask(up.unix, method, path, body)
        assert answer.code == code, (method, path, answer)
    assert up.daemon.api.node.log.head().offset == head
