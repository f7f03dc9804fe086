"""Objects over HTTP: put, and read whole or in parts."""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.node.http.objects import span_of
from holdfast.node.settings import Settings
from holdfast.rules import limits
from holdfast.rules.errors import DiskFull, OverLimit
from holdfast.rules.limits import BLOB_CHUNK_BYTES
from holdfast.service.caller import Caller
from support.daemon import Plain, connect, make_home, process, running
from support.daemon import ask as ask_at
from support.talk import Talk
from support.waiting import until

CONTENT = b"holdfast " * 1000
LARGE = os.urandom(4096) * (3 * BLOB_CHUNK_BYTES // 4096) + b"and a bit"


def sha_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


SHA = sha_of(CONTENT)


@pytest.fixture
def talk(tmp_path: Path) -> Iterator[Talk]:
    with running(make_home(tmp_path / "home"), Settings(tcp="127.0.0.1:0")) as up:
        yield Talk(up, up.unix)


def part(talk: Talk, sha: str, span: str, **headers: str) -> Plain:
    return talk.ask("GET", f"/v1/objects/{sha}", range=span, **headers)


# --- Put ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("content", [b"", b"x", CONTENT, LARGE], ids=len)
@pytest.mark.parametrize("named", [False, True])
def test_Z2_what_was_put_can_be_got(talk: Talk, content: bytes, named: bool) -> None:
    sha = sha_of(content)
    put = talk.ask("PUT", f"/v1/objects/{sha}" if named else "/v1/objects", content)
    assert (put.status, put.json) == (201, {"sha256": sha, "size": len(content)})
    got = talk.ask("GET", f"/v1/objects/{sha}")
    assert (got.status, got.body) == (200, content)
    assert got.headers["etag"] == f'"{sha}"'
    assert got.headers["content-length"] == str(len(content))


def test_Z2_putting_twice_is_one_object(talk: Talk) -> None:
    talk.ask("PUT", "/v1/objects", CONTENT)
    before = talk.state()
    assert talk.ask("PUT", "/v1/objects", CONTENT).status == 201
    assert talk.state() == before


def test_Z2_content_that_is_not_what_its_name_says_is_refused_and_not_kept(talk: Talk) -> None:
    before = talk.state()
    answer = talk.ask("PUT", f"/v1/objects/{sha_of(b'other')}", CONTENT)
    assert (answer.status, answer.code) == (400, "bad_value")
    assert {**talk.state(), "files": None} == {**before, "files": None}
    assert list(talk.engine.blobs.scan()) == []


@pytest.mark.parametrize("name", ["AB" * 32, "ab", "g" * 64, "..%2f..%2fetc%2fpasswd", "a" * 65])
def test_Z2_only_a_hash_is_the_name_of_an_object(talk: Talk, name: str) -> None:
    for method in ("PUT", "GET", "HEAD"):
        answer = talk.ask(method, f"/v1/objects/{name}", b"x" if method == "PUT" else None)
        # A name with slashes in it is no place of ours at all.
        assert answer.status in (400, 404)
    assert list(talk.engine.blobs.scan()) == []


def test_Z2_an_object_over_the_limit_is_refused_before_and_while_it_comes(
    talk: Talk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.node.http.objects.FILE_BYTES_MAX", 1000)
    announced = talk.ask("PUT", "/v1/objects", b"x" * 1001)
    assert (announced.status, announced.code) == (413, "body_too_large")
    connection = connect(talk.address)
    connection.request("PUT", "/v1/objects", iter([b"x" * 500] * 3), encode_chunked=True)
    assert connection.getresponse().status == 413
    connection.close()
    until(lambda: list(talk.engine.blobs.scan()) == [])


def test_Z2_the_store_has_a_limit_of_its_own(talk: Talk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(talk.engine.blobs, "bytes_max", 1000)
    answer = talk.ask("PUT", "/v1/objects", b"x" * 1001)
    assert (answer.status, answer.code) == (OverLimit.http_status, "over_limit")
    assert list(talk.engine.blobs.scan()) == []


def test_Z7_a_caller_that_goes_away_leaves_nothing_of_its_object(talk: Talk) -> None:
    head = b"PUT /v1/objects HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n" % len(LARGE)
    with socket.socket(socket.AF_UNIX) as line:
        line.connect(talk.up.unix.removeprefix("unix:"))
        line.sendall(head + LARGE[: 2 * BLOB_CHUNK_BYTES])
        until(lambda: list(talk.engine.blobs.scan()) != [])
    until(lambda: list(talk.engine.blobs.scan()) == [])
    assert talk.ask("PUT", "/v1/objects", LARGE).status == 201


def test_Z7_a_full_disk_refuses_an_object_and_leaves_nothing_of_it(
    talk: Talk, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full() -> None:
        raise DiskFull("the disk is full")

    monkeypatch.setattr(talk.engine, "admit", full)
    answer = talk.ask("PUT", "/v1/objects", CONTENT)
    assert (answer.status, answer.code) == (507, "disk_full")
    assert list(talk.engine.blobs.scan()) == []


@pytest.mark.faults
def test_Z2_an_answer_means_that_it_survives_the_end_of_the_process(tmp_path: Path) -> None:
    home = make_home(tmp_path / "home")
    with process(home) as up:
        assert ask_at(up.unix, "PUT", "/v1/objects", LARGE).status == 201
        fact = {"subject": "s", "predicate": "p", "object": 1, "objects": [sha_of(LARGE)]}
        assert ask_at(up.unix, "POST", "/v1/facts/append", json.dumps(fact).encode()).status == 201
        up.kill()
    with process(home) as up:
        assert ask_at(up.unix, "GET", f"/v1/objects/{sha_of(LARGE)}").body == LARGE


# --- Get ---------------------------------------------------------------------------------------


def test_Z2_an_unknown_object_is_told(talk: Talk) -> None:
    answer = talk.ask("GET", f"/v1/objects/{SHA}")
    assert (answer.status, answer.code) == (404, "unknown_object")
    assert talk.ask("HEAD", f"/v1/objects/{SHA}").status == 404


def test_Z2_the_size_of_an_object_can_be_asked_for(talk: Talk) -> None:
    talk.ask("PUT", "/v1/objects", CONTENT)
    answer = talk.ask("HEAD", f"/v1/objects/{SHA}")
    assert (answer.status, answer.body) == (200, b"")
    assert answer.headers["content-length"] == str(len(CONTENT))
    assert answer.headers["accept-ranges"] == "bytes"


@pytest.mark.parametrize(
    ("span", "start", "stop"),
    [
        ("bytes=0-0", 0, 1),
        ("bytes=10-19", 10, 20),
        ("bytes=8990-", 8990, 9000),
        ("bytes=8990-99999", 8990, 9000),
        ("bytes=-5", 8995, 9000),
        ("bytes=-99999", 0, 9000),
        ("bytes=0-", 0, 9000),
    ],
)
def test_Z2_a_part_of_an_object_is_given(talk: Talk, span: str, start: int, stop: int) -> None:
    talk.ask("PUT", "/v1/objects", CONTENT)
    answer = part(talk, SHA, span)
    assert (answer.status, answer.body) == (206, CONTENT[start:stop])
    assert answer.headers["content-range"] == f"bytes {start}-{stop - 1}/{len(CONTENT)}"


@pytest.mark.parametrize("span", ["bytes=9000-", "bytes=9000-9001", "bytes=-0", f"bytes={2**62}-"])
def test_Z2_a_part_that_is_not_there_is_refused_with_the_size(talk: Talk, span: str) -> None:
    talk.ask("PUT", "/v1/objects", CONTENT)
    answer = part(talk, SHA, span)
    assert (answer.status, answer.code) == (416, "bad_range")
    assert answer.headers["content-range"] == f"bytes */{len(CONTENT)}"


@pytest.mark.parametrize(
    "span", ["bytes=5-4", "bytes=a-b", "lines=1-2", "bytes=0-1,3-4", "bytes=-", "", "bytes"]
)
def test_Z2_a_header_that_is_not_one_plain_range_gets_all_of_it(talk: Talk, span: str) -> None:
    talk.ask("PUT", "/v1/objects", CONTENT)
    answer = part(talk, SHA, span)
    assert (answer.status, answer.body) == (200, CONTENT)


@given(st.integers(0, 50), st.integers(0, 60), st.integers(0, 60))
def test_Z2_a_range_never_reaches_beyond_the_object(size: int, first: int, last: int) -> None:
    content = bytes(range(size))
    for text, expected in (
        (f"bytes={first}-{last}", content[first : last + 1] if first <= last else None),
        (f"bytes={first}-", content[first:]),
        (f"bytes=-{last}", content[max(0, size - last) :] if last else b""),
    ):
        span = span_of(text, size)
        if expected is None:
            assert span is None
        else:
            assert span is not None
            assert content[span[0] : span[1]] == expected
            assert span[1] <= size
            assert (span[0] >= span[1]) == (expected == b"")


def test_Z2_who_has_it_already_is_told_so(talk: Talk) -> None:
    talk.ask("PUT", "/v1/objects", CONTENT)
    answer = talk.ask("GET", f"/v1/objects/{SHA}", if_none_match=f'"{SHA}"')
    assert (answer.status, answer.body) == (304, b"")
    assert part(talk, SHA, "bytes=0-4", if_range=f'"{SHA}"').status == 206
    assert part(talk, SHA, "bytes=0-4", if_range='"another"').status == 200


def test_Z2_whoever_may_read_may_get_what_entries_name(talk: Talk) -> None:
    talk.ask("PUT", "/v1/objects", CONTENT)
    secret = talk.api.trust.add_token("reader", reads=["team"])
    reader = Talk(talk.up, talk.up.tcp, secret)
    assert reader.ask("GET", f"/v1/objects/{SHA}").body == CONTENT
    stranger = Talk(talk.up, talk.up.tcp)
    assert stranger.ask("GET", f"/v1/objects/{SHA}").status == 401


def test_Z8_a_zone_that_may_read_nothing_gets_no_object(
    talk: Talk, monkeypatch: pytest.MonkeyPatch
) -> None:
    talk.ask("PUT", "/v1/objects", CONTENT)
    zone = Caller("zone", "bob", frozenset())
    monkeypatch.setattr("holdfast.node.http.context.identify", lambda api, scope: zone)
    for method in ("GET", "HEAD"):
        assert talk.ask(method, f"/v1/objects/{SHA}").status == 403


def test_S9_content_that_was_damaged_on_the_disk_never_arrives_as_a_whole(talk: Talk) -> None:
    for content in (CONTENT, LARGE):
        sha = sha_of(content)
        talk.ask("PUT", "/v1/objects", content)
        path = talk.api.node._opened.paths.blobs / sha[:2] / sha
        path.write_bytes(content[:-1] + b"X")
        with pytest.raises((http.client.IncompleteRead, ConnectionError)):
            talk.ask("GET", f"/v1/objects/{sha}")
        path.write_bytes(content[:-1])  # shorter than it says, in the middle of the answer
        assert part(talk, sha, "bytes=0-9").body == content[:10]


def test_Z2_an_object_that_is_read_slowly_costs_a_piece_of_memory(
    talk: Talk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.node.http.objects.BLOB_CHUNK_BYTES", 64 * limits.KIB)
    content = os.urandom(4096) * 2048
    talk.ask("PUT", "/v1/objects", content)
    read: list[int] = []
    real = talk.engine.blobs.open_unchecked

    def counted(sha: str) -> object:
        stream = real(sha)
        take = stream.read

        class Counted:
            seek, close = stream.seek, stream.close

            def read(self, size: int) -> bytes:
                read.append(size)
                return take(size)

        return Counted()

    monkeypatch.setattr(talk.engine.blobs, "open_unchecked", counted)
    connection = connect(talk.address)
    connection.request("GET", f"/v1/objects/{sha_of(content)}")
    answer = connection.getresponse()
    talk.append()  # the node has had time to run ahead, and works on
    talk.append()
    assert sum(read) < len(content) / 2
    assert answer.read() == content
    connection.close()
