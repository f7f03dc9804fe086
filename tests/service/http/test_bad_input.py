"""Whatever is sent to a node: a clear refusal, in one shape, and nothing changed."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.node.settings import Settings
from holdfast.protocol.log_wire import ARROW, MSGPACK, NDJSON
from holdfast.rules.limits import BODY_BYTES_MAX, FETCH_ROWS_MAX, VALUE_BYTES_MAX
from support.daemon import Plain, connect, make_home, running
from support.talk import Talk

APPEND, FETCH, CONFIRM = "/v1/facts/append", "/v1/facts/fetch", "/v1/facts/confirm"
CONSUMERS = "/v1/consumers"
ID = "0197f2a0-0000-7000-8000-000000000001"
VERSION_1 = "7d444840-9dc0-11d1-b245-5ffdce74fad2"
FACT: dict[str, Any] = {"subject": "s", "predicate": "p", "object": 1}


@pytest.fixture(scope="module")
def talk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Talk]:
    """One node for all that is sent here: nothing of it may change anything."""
    home: Path = make_home(tmp_path_factory.mktemp("bad") / "home")
    with running(home, Settings(tcp="127.0.0.1:0")) as up:
        talk = Talk(up, up.unix)
        talk.append_many(9)
        talk.append("known", id=ID)
        talk.truncate(3)
        talk.register(start=3)
        talk.register("ranges", start=3)
        talk.confirm("ranges", ranges=[[5, 7]])
        talk.register("behind", start=3)
        talk.ask("PUT", "/v1/objects", b"content")
        talk.api.trust.add_token("reader", reads=["team"])
        yield talk


def refused(answer: Plain, status: int, code: str) -> None:
    assert (answer.status, answer.code) == (status, code), answer
    error = answer.json["error"]
    assert error["message"]
    assert set(error) <= {"code", "message", "hint", "first_available", "epoch"}


def fact(object: str = "1", more: str = "", *, subject: str = '"s"') -> bytes:
    """A fact as text, so that a part of it can be what no library would write."""
    return f'{{"subject":{subject},"predicate":"p","object":{object}{more}}}'.encode()


def nested(levels: int) -> bytes:
    return fact("[" * levels + "]" * levels)


INPUT, VALUE, KEY, LIMIT = "bad_input", "bad_value", "bad_key", "over_limit"
BODIES: list[tuple[str, bytes, int, str]] = [
    ("empty", b"", 400, INPUT),
    ("not JSON", b"{", 400, INPUT),
    ("two values", b"{} {}", 400, INPUT),
    ("a text", b'"fact"', 400, INPUT),
    ("null", b"null", 400, INPUT),
    ("not UTF-8", fact().replace(b"s", b"\xff"), 400, INPUT),
    ("UTF-16", '{"subject":"s"}'.encode("utf-16"), 400, INPUT),
    ("a mark of order", b"\xef\xbb\xbf" + fact(), 400, INPUT),
    ("a key twice", fact("1", ',"subject":"t"'), 400, INPUT),
    ("a key twice inside", fact('{"a":[{"b":1,"b":2}]}'), 400, INPUT),
    ("NaN", fact("NaN"), 400, INPUT),
    ("Infinity", fact("[-Infinity]"), 400, INPUT),
    ("a huge number", fact("1e999"), 400, VALUE),
    ("a long number", fact("9" * 5000), 400, INPUT),
    ("half a pair", fact('"\\ud800"'), 400, INPUT),
    ("half a pair as a field", fact("1", ',"\\uDFFF":1'), 400, INPUT),
    ("NUL in the subject", fact(subject='"a\\u0000b"'), 400, KEY),
    ("NUL in the object", fact('"\\u0000"'), 400, VALUE),
    ("NUL in a key", fact('{"\\u0000":1}'), 400, VALUE),
    ("a real NUL", fact(subject='"a\0b"'), 400, INPUT),
    ("deep", nested(100), 400, LIMIT),
    ("very deep", nested(100_000), 400, INPUT),
    ("no subject", b'{"predicate":"p","object":1}', 400, INPUT),
    ("no predicate", b'{"subject":"s","object":1}', 400, INPUT),
    ("no object", b'{"subject":"s","predicate":"p"}', 400, INPUT),
    ("a number as subject", fact(subject="1"), 400, INPUT),
    ("an empty subject", fact(subject='""'), 400, KEY),
    ("a long subject", fact(subject=f'"{"s" * 2000}"'), 400, LIMIT),
    ("a large object", fact(f'"{"x" * VALUE_BYTES_MAX}"'), 400, LIMIT),
    ("an unknown field", fact("1", ',"objetc":2'), 400, INPUT),
    ("a strange id", fact("1", ',"id":"7"'), 400, "bad_id"),
    ("an id of version 1", fact("1", f',"id":"{VERSION_1}"'), 400, "bad_id"),
    ("a reused id", fact("1", f',"id":"{ID}"'), 409, "id_reused"),
    ("an unknown mesh", fact("1", ',"mesh":"nowhere"'), 404, "unknown_mesh"),
    ("a mesh that is none", fact("1", ',"mesh":"No Where"'), 404, "unknown_mesh"),
    ("meta that is no object", fact("1", ',"meta":[]'), 400, INPUT),
    ("meta with a wide number", fact("1", ',"meta":{"a":9007199254740993}'), 400, VALUE),
    ("an object that is no hash", fact("1", ',"objects":["x"]'), 400, INPUT),
    ("an unknown object", fact("1", f',"objects":["{"ab" * 32}"]'), 404, "unknown_object"),
    ("facts that are none", b'{"facts":{}}', 400, INPUT),
    ("facts and more", b'{"facts":[],"subject":"s"}', 400, INPUT),
]


@pytest.mark.parametrize(
    ("body", "status", "code"), [b[1:] for b in BODIES], ids=[b[0] for b in BODIES]
)
def test_R4_a_fact_that_cannot_be_is_refused(
    talk: Talk, body: bytes, status: int, code: str
) -> None:
    before = talk.state()
    refused(talk.ask("POST", APPEND, body), status, code)
    assert talk.state() == before


@pytest.mark.parametrize("path", [APPEND, FETCH, CONFIRM, CONSUMERS])
@pytest.mark.parametrize("form", ["announced", "in chunks"])
def test_D10_a_body_that_is_too_large_is_refused(talk: Talk, path: str, form: str) -> None:
    before = talk.state()
    body = b" " * (BODY_BYTES_MAX + 1)
    if form == "announced":
        refused(talk.ask("POST", path, body), 413, "body_too_large")
    else:
        connection = connect(talk.address)
        halves = iter([body[: len(body) // 2], body[len(body) // 2 :]])
        try:
            connection.request("POST", path, halves, encode_chunked=True)
        except (BrokenPipeError, ConnectionResetError):
            pass  # it may be told before it has sent everything
        else:
            assert connection.getresponse().status == 413
        connection.close()
    assert talk.state() == before


END, GONE = "past_end", "truncated"
FETCHES: list[tuple[dict[str, Any], int, str]] = [
    ({"consumer": "nobody"}, 404, "unknown_consumer"),
    ({"consumer": ""}, 404, "unknown_consumer"),
    ({"consumer": 1}, 400, INPUT),
    ({"limit": 0}, 400, LIMIT),
    ({"limit": -1}, 400, LIMIT),
    ({"limit": FETCH_ROWS_MAX + 1}, 400, LIMIT),
    ({"limit": 10**40}, 400, LIMIT),
    ({"limit": "10"}, 400, INPUT),
    ({"limit": 1.5}, 400, INPUT),
    ({"limit": True}, 400, INPUT),
    ({"from": 0}, 400, INPUT),
    ({"from": -(2**63)}, 400, INPUT),
    ({"from": 2}, 410, GONE),
    ({"from": 12}, 409, END),
    ({"from": 2**63 - 1}, 409, END),
    ({"from": 10**40}, 409, END),
    ({"epoch": 2}, 409, "epoch_changed"),
    ({"limt": 1}, 400, INPUT),
    ({"confirm": 11}, 409, END),
    ({"confirm": -1}, 400, VALUE),
    # A good confirmation that comes with something bad: none of it happens.
    ({"confirm": 5, "limit": 0}, 400, LIMIT),
    ({"confirm": 5, "from": 12}, 409, END),
    ({"confirm": 5, "from": 1}, 410, GONE),
    ({"confirm": 5, "epoch": 9}, 409, "epoch_changed"),
    ({"confirm": 5, "wait_ms": -1}, 400, LIMIT),
]
CONFIRMS: list[tuple[dict[str, Any], int, str]] = [
    ({"consumer": "nobody", "offset": 1}, 404, "unknown_consumer"),
    ({}, 400, INPUT),
    ({"offset": 1, "ranges": []}, 400, INPUT),
    ({"offset": 11}, 409, END),
    ({"offset": 2**63 - 1}, 409, END),
    ({"offset": 2**70}, 409, END),
    ({"offset": -1}, 400, VALUE),
    ({"ranges": [[10, 12]]}, 409, END),
    ({"ranges": [[3, 4], [9, 99]]}, 409, END),
    ({"ranges": [[0, 3]]}, 400, VALUE),
    ({"ranges": [[5, 4]]}, 400, VALUE),
    ({"ranges": [[1, 2, 3]]}, 400, INPUT),
    ({"ranges": {"1": 2}}, 400, INPUT),
]
REGISTRATIONS: list[tuple[dict[str, Any], int, str]] = [
    ({"consumer": ""}, 400, KEY),
    ({"consumer": "a\0b"}, 400, KEY),
    ({"consumer": "n" * 513}, 400, LIMIT),
    ({"from": "middle"}, 400, INPUT),
    ({"from": 1}, 410, GONE),
    ({"from": 12}, 409, END),
    ({"filter": {"classes": ["x"]}}, 400, INPUT),
    ({"filter": {"meshes": ["m"] * 65}}, 400, LIMIT),
    ({"filter": {"subjects": [""]}}, 400, KEY),
    ({"filter": "facts"}, 400, INPUT),
    ({"retire_ms": 0}, 400, INPUT),
    ({"retire_lag": 2**70}, 400, INPUT),
]
ASKED = [
    *((FETCH, {"consumer": "reader", **row[0]}, *row[1:]) for row in FETCHES),
    *((CONFIRM, {"consumer": "reader", **row[0]}, *row[1:]) for row in CONFIRMS),
    *((CONSUMERS, {"consumer": "new", **row[0]}, *row[1:]) for row in REGISTRATIONS),
]


@pytest.mark.parametrize(("path", "body", "status", "code"), ASKED)
def test_R4_a_question_that_makes_no_sense_is_refused(
    talk: Talk, path: str, body: Any, status: int, code: str
) -> None:
    before = talk.state()
    refused(talk.ask("POST", path, body), status, code)
    assert talk.state() == before


@pytest.mark.parametrize(
    "body", [b'{"consumer":"reader","consumer":"ranges"}', b"\xff", b"", b"[" * 50_000, b"NaN"]
)
@pytest.mark.parametrize("path", [FETCH, CONFIRM, CONSUMERS])
def test_R4_a_body_that_can_be_read_in_two_ways_or_none_is_refused(
    talk: Talk, path: str, body: bytes
) -> None:
    before = talk.state()
    refused(talk.ask("POST", path, body), 400, "bad_input")
    assert talk.ask("POST", path, body, content_type=MSGPACK).status in (400, 404)
    assert talk.state() == before


def test_Z4_confirming_backwards_or_inside_what_is_confirmed_is_a_no_op(talk: Talk) -> None:
    def frontiers() -> dict[str, str]:
        return {row.name: row.frontier for row in talk.state()["consumers"]}

    before = frontiers()
    assert talk.confirm("ranges", offset=0).status == 200
    assert talk.confirm("ranges", offset=2).status == 200
    assert talk.confirm("ranges", ranges=[[5, 7], [6, 6]]).status == 200
    assert frontiers() == before


QUERIES = [
    ("", 400, "bad_input"),
    ("consumer=nobody", 404, "unknown_consumer"),
    ("consumer=reader&consumer=reader", 400, "bad_input"),
    ("consumer=reader&limit=0", 400, "over_limit"),
    ("consumer=reader&limit=", 400, "bad_input"),
    ("consumer=reader&limit=-1", 400, "bad_input"),
    ("consumer=reader&limit=%D9%A3", 400, "bad_input"),
    ("consumer=reader&wait_ms=60001", 400, "over_limit"),
    ("consumer=reader&from=0", 400, "bad_input"),
    ("consumer=reader&confirm=11", 409, "past_end"),
    ("consumer=reader&what=1", 400, "bad_input"),
    ("consumer=%FF", 400, "bad_input"),
    ("consumer=reader&token=hf_secret", 401, "bad_token"),
]


@pytest.mark.parametrize(("query", "status", "code"), QUERIES, ids=[q[0] for q in QUERIES])
def test_R4_an_address_that_makes_no_sense_is_refused(
    talk: Talk, query: str, status: int, code: str
) -> None:
    before = talk.state()
    refused(talk.ask("GET", f"{FETCH}?{query}"), status, code)
    assert talk.state() == before


KEYS: list[tuple[str, dict[str, str]]] = [
    ("none", {}),
    ("empty", {"authorization": ""}),
    ("of another kind", {"authorization": "Basic YTpi"}),
    ("without a token", {"authorization": "Bearer "}),
    ("malformed", {"authorization": "Bearer hf_short"}),
    ("unknown", {"authorization": "Bearer hf_" + "A" * 43}),
    ("of a session that never was", {"authorization": "Bearer session"}),
]
CALLS: list[tuple[str, str, Any]] = [
    ("POST", APPEND, FACT),
    ("POST", FETCH, {"consumer": "reader", "confirm": 5}),
    ("GET", f"{FETCH}?consumer=reader&confirm=5", None),
    ("POST", CONFIRM, {"consumer": "reader", "offset": 5}),
    ("GET", "/v1/facts/range", None),
    ("GET", CONSUMERS, None),
    ("POST", CONSUMERS, {"consumer": "new"}),
    ("DELETE", f"{CONSUMERS}/reader", None),
    ("PUT", "/v1/objects", b"x"),
    ("GET", f"/v1/objects/{'ab' * 32}", None),
]


@pytest.mark.parametrize("headers", [k[1] for k in KEYS], ids=[k[0] for k in KEYS])
def test_U4_without_a_good_key_nothing_is_answered_and_nothing_changed(
    talk: Talk, headers: dict[str, str]
) -> None:
    before = talk.state()
    stranger = Talk(talk.up, talk.up.tcp)
    for method, path, body in CALLS:
        answer = stranger.ask(method, path, body, **headers)
        refused(answer, 401, "bad_token")
        assert answer.headers["www-authenticate"].startswith("Bearer")
    assert talk.state() == before


def test_U4_an_expired_key_is_refused(talk: Talk, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = talk.api.trust.add_token("for a day", reads=["team"], days=1)
    bearer = Talk(talk.up, talk.up.tcp, secret)
    assert bearer.ask("GET", CONSUMERS).status == 200
    before = talk.state()
    later = talk.engine.ctx.now_ms() + 2 * 24 * 3600 * 1000
    with monkeypatch.context() as patch:
        patch.setattr(type(talk.engine.ctx), "now_ms", lambda self: later)
        for method, path, body in CALLS:
            refused(bearer.ask(method, path, body), 401, "key_expired")
    assert talk.state() == before
    talk.api.trust.revoke_token("for a day")
    refused(bearer.ask("GET", CONSUMERS), 401, "bad_token")


# --- Fuzz --------------------------------------------------------------------------------------

FIELDS = st.sampled_from(
    [
        *("consumer", "limit", "wait_ms", "from", "confirm", "epoch", "offset", "ranges"),
        *("filter", "retire_ms", "retire_lag", "subject", "predicate", "object", "id", "meta"),
        *("objects", "mesh", "facts"),
    ]
)
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["reader", "start", "now", ID, "team", "\0", "zone:a/b"])
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4)
    ),
    max_leaves=8,
)
PATHS = st.sampled_from(
    [
        *(APPEND, FETCH, CONFIRM, CONSUMERS, f"{CONSUMERS}/nobody", "/v1/facts/range", "/v1/facts"),
        *(f"/v1/objects/{'ab' * 32}", "/v1/objects/x", "/v1/facts/range?from=1&to=2", "/v1/"),
    ]
)
METHODS = st.sampled_from(["GET", "POST", "PUT", "DELETE", "HEAD", "PATCH", "OPTIONS"])
TYPES = st.sampled_from(["application/json", MSGPACK, NDJSON, "text/plain", ""])
FUZZ = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(scope="module")
def fuzzed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Talk]:
    """A node of its own: among what is sent there may be something good."""
    home: Path = make_home(tmp_path_factory.mktemp("fuzz") / "home")
    with running(home) as up:
        talk = Talk(up, up.unix)
        talk.append_many(9)
        talk.register()
        yield talk


def clean(answer: Plain) -> None:
    """Anything but a fault of ours."""
    assert answer.status < 500, answer
    if answer.status >= 400 and answer.body:
        assert answer.code


@FUZZ
@given(METHODS, PATHS, st.binary(max_size=60), TYPES, st.sampled_from(["", ARROW, MSGPACK]))
def test_R4_whatever_bytes_come_the_answer_is_clean(
    fuzzed: Talk, method: str, path: str, body: bytes, kind: str, accept: str
) -> None:
    if (method, path) == ("PUT", "/v1/objects"):
        return  # any bytes are an object
    clean(fuzzed.ask(method, path, body, content_type=kind, accept=accept))


@FUZZ
@given(
    st.sampled_from([APPEND, FETCH, CONFIRM, CONSUMERS]),
    st.dictionaries(FIELDS, VALUES, max_size=6),
    st.booleans(),
)
def test_R4_whatever_fields_come_the_answer_is_clean(
    fuzzed: Talk, path: str, fields: dict[str, Any], packed: bool
) -> None:
    if isinstance(fields.get("wait_ms"), int):
        fields["wait_ms"] = min(fields["wait_ms"], 1)
    if packed:
        try:
            body = msgspec.msgpack.encode(fields)
        except (OverflowError, UnicodeEncodeError):
            return
        clean(fuzzed.ask("POST", path, body, content_type=MSGPACK))
    else:
        clean(fuzzed.ask("POST", path, json.dumps(fields).encode()))


@FUZZ
@given(st.text(st.characters(codec="utf-8"), max_size=30), st.integers(-5, 2**70), PATHS)
def test_R4_whatever_address_comes_the_answer_is_clean(
    fuzzed: Talk, text: str, number: int, path: str
) -> None:
    clean(fuzzed.ask("GET", f"{path.partition('?')[0]}?from={number}&to={quote(text)}"))
    clean(fuzzed.ask("GET", f"{FETCH}?consumer={quote(text)}&limit={number}"))
    clean(fuzzed.ask("DELETE", f"{CONSUMERS}/{quote(text or 'x')}"))
    clean(fuzzed.ask("GET", f"/v1/objects/{quote(text or 'x', safe='')}", range=f"bytes={number}-"))


@FUZZ
@given(st.binary(max_size=80))
def test_R4_what_is_not_even_http_does_no_harm(fuzzed: Talk, raw: bytes) -> None:
    with socket.socket(socket.AF_UNIX) as line:
        line.settimeout(60)
        line.connect(fuzzed.up.unix.removeprefix("unix:"))
        line.sendall(raw)
        line.shutdown(socket.SHUT_WR)
        try:
            while line.recv(4096):
                pass
        except ConnectionResetError:
            pass
    clean(fuzzed.ask("GET", CONSUMERS))
