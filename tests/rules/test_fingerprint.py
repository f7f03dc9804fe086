"""D3: the fingerprint of a request and the canonical form of its meta."""

from __future__ import annotations

import hashlib
import json
import math
import struct
import subprocess
import sys
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.rules import compiled
from holdfast.rules.errors import BadValue
from holdfast.rules.fingerprint import (
    FINGERPRINT_BYTES,
    SAFE_INT_MAX,
    canonical_meta,
    fingerprint,
    fingerprint_2,
    parse_meta,
)
from holdfast.rules.limits import META_BYTES_MAX, META_DEPTH_MAX
from support.project import SOURCE

VECTOR_FILES = SOURCE / "protocol" / "vectors"


def _vectors(name: str) -> list[dict[str, str]]:
    path = VECTOR_FILES / name
    found: list[dict[str, str]] = json.loads(path.read_text("utf-8"))["vectors"]
    return found


VECTORS = _vectors("fingerprint.json")
VECTORS_2 = _vectors("fingerprint_2.json")


def by_hand(v: dict[str, str]) -> str:
    """The same hash, written from the definition and with nothing in common with our code."""
    state = hashlib.new("sha256")
    names = ("kind", "ref", "reply_to", "priority", "meta_canonical", "content_type")
    for field in ("2" if "content_type" in v else "1", *(v[name] for name in names if name in v)):
        state.update(field.encode("utf-8"))
        state.update(bytes([0]))
    body = hashlib.new("sha256", bytes.fromhex(v["body_hex"]))
    state.update("".join(f"{byte:02x}" for byte in body.digest()).encode("ascii"))
    return state.hexdigest()


@pytest.mark.parametrize("v", VECTORS, ids=lambda v: v["name"])
def test_D3_the_published_vectors_hold(v: dict[str, str]) -> None:
    meta = canonical_meta(parse_meta(v["meta"]))
    assert meta.decode() == v["meta_canonical"]
    request: dict[str, Any] = {name: v[name] for name in ("kind", "ref", "reply_to", "priority")}
    body = bytes.fromhex(v["body_hex"])
    found = fingerprint(**request, meta=meta, body=body)
    assert len(found) == FINGERPRINT_BYTES
    assert found.hex() == v["fingerprint"] == by_hand(v)
    assert fingerprint(**request, meta=meta, body_hash=v["body_hash"]) == found


@pytest.mark.parametrize("v", VECTORS_2, ids=lambda v: v["name"])
def test_D3_the_published_vectors_of_version_2_hold(v: dict[str, str]) -> None:
    meta = canonical_meta(parse_meta(v["meta"]))
    names = ("kind", "ref", "reply_to", "priority", "content_type")
    request: dict[str, Any] = {name: v[name] for name in names}
    found = fingerprint_2(**request, meta=meta, body=bytes.fromhex(v["body_hex"]))
    assert found.hex() == v["fingerprint"] == by_hand(v)
    assert fingerprint_2(**request, meta=meta, body_hash=v["body_hash"]) == found


def test_D3_the_vectors_of_version_2_vary_every_field_and_meet_none_of_version_1() -> None:
    for name in ("kind", "ref", "reply_to", "priority", "meta_canonical", "content_type"):
        assert len({v[name] for v in VECTORS_2}) >= 2, name
    both = [v["fingerprint"] for v in (*VECTORS, *VECTORS_2)]
    assert len(set(both)) >= len(both) - 2, "only no meta and empty meta are one request"


@pytest.mark.parametrize("field", ["kind", "ref", "reply_to", "priority", "meta", "content_type"])
def test_D3_a_nul_in_a_field_of_version_2_is_refused(field: str) -> None:
    request: dict[str, Any] = {"kind": "topic", "ref": "r", "body": b"", field: "a\0b"}
    if field == "meta":
        request["meta"] = b"a\0b"
    with pytest.raises(BadValue, match=field):
        fingerprint_2(**request)


def test_D3_the_vectors_vary_every_field() -> None:
    assert len(VECTORS) >= 12
    for name in ("kind", "ref", "reply_to", "priority", "meta_canonical", "body_hex"):
        assert len({v[name] for v in VECTORS}) >= 2, name
    # Only "no meta" and "empty meta" are one request in two spellings.
    assert len({v["fingerprint"] for v in VECTORS}) == len(VECTORS) - 1


def test_D3_reply_priority_and_meta_have_defaults() -> None:
    plain = next(v for v in VECTORS if v["name"] == "plain")
    assert fingerprint(kind="topic", ref="builds", body=b"hello").hex() == plain["fingerprint"]


@pytest.mark.parametrize("field", ["kind", "ref", "reply_to", "priority", "meta"])
@pytest.mark.parametrize("text", ["\0", "a\0", "\0a", "a\0\0b"])
def test_D3_a_NUL_in_a_joined_field_is_refused_by_name(field: str, text: str) -> None:
    request: dict[str, Any] = {"kind": "topic", "ref": "r", "body": b""}
    request[field] = text.encode() if field == "meta" else text
    with pytest.raises(BadValue, match=f"field {field} contains a NUL"):
        fingerprint(**request)


def test_D3_a_NUL_in_the_body_is_welcome() -> None:
    assert fingerprint(kind="topic", ref="r", body=b"\0") != fingerprint(
        kind="topic", ref="r", body=b"\0\0"
    )


def test_D3_half_a_surrogate_pair_is_refused() -> None:
    with pytest.raises(BadValue, match="surrogate"):
        fingerprint(kind="topic", ref="\ud800", body=b"")


@pytest.mark.parametrize("bad", ["", "ab", "A" * 64, "g" * 64, "a" * 63 + "\n", "a" * 65, "ä" * 64])
def test_D3_a_body_hash_is_64_lower_case_hex_digits(bad: str) -> None:
    with pytest.raises(BadValue, match="64 lower-case hex"):
        fingerprint(kind="topic", ref="r", body_hash=bad)


def test_D3_the_body_or_its_hash_is_given_not_both_and_not_neither() -> None:
    with pytest.raises(BadValue, match="needs the body or its hash"):
        fingerprint(kind="topic", ref="r")
    with pytest.raises(BadValue, match="not both"):
        fingerprint(kind="topic", ref="r", body=b"", body_hash="0" * 64)


def test_D3_fields_do_not_run_into_each_other() -> None:
    assert fingerprint(kind="ab", ref="c", body=b"") != fingerprint(kind="a", ref="bc", body=b"")


# --- the canonical form of meta ----------------------------------------------------------------

# RFC 8785, appendix B: the bits of a double and how they are written.
RFC_NUMBERS = """
0000000000000000 0
8000000000000000 0
0000000000000001 5e-324
8000000000000001 -5e-324
7fefffffffffffff 1.7976931348623157e+308
ffefffffffffffff -1.7976931348623157e+308
4340000000000000 9007199254740992
c340000000000000 -9007199254740992
4430000000000000 295147905179352830000
44b52d02c7e14af5 9.999999999999997e+22
44b52d02c7e14af6 1e+23
44b52d02c7e14af7 1.0000000000000001e+23
444b1ae4d6e2ef4e 999999999999999700000
444b1ae4d6e2ef4f 999999999999999900000
444b1ae4d6e2ef50 1e+21
3eb0c6f7a0b5ed8c 9.999999999999997e-7
3eb0c6f7a0b5ed8d 0.000001
41b3de4355555553 333333333.3333332
41b3de4355555554 333333333.33333325
41b3de4355555555 333333333.3333333
41b3de4355555556 333333333.3333334
41b3de4355555557 333333333.33333343
becbf647612f3696 -0.0000033333333333333333
43143ff3c1cb0959 1424953923781206.2
"""


@pytest.mark.parametrize("line", RFC_NUMBERS.split("\n")[1:-1])
def test_D3_numbers_are_written_as_RFC_8785_lists_them(line: str) -> None:
    bits, text = line.split()
    (number,) = struct.unpack(">d", bytes.fromhex(bits))
    raw = f'{{"n":{text}}}'.encode()
    assert canonical_meta({"n": number}) == raw
    assert canonical_meta(parse_meta(raw)) == raw


@pytest.mark.parametrize("bits", ["7fffffffffffffff", "7ff0000000000000", "fff0000000000000"])
def test_D3_the_doubles_that_RFC_8785_calls_errors_are_refused(bits: str) -> None:
    (number,) = struct.unpack(">d", bytes.fromhex(bits))
    with pytest.raises(BadValue, match="JSON cannot say"):
        canonical_meta({"deep": [{"n": number}]})


def test_D3_keys_are_sorted_as_RFC_8785_shows() -> None:
    meta = {
        "\u20ac": "Euro Sign",
        "\r": "Carriage Return",
        "\ufb33": "Hebrew Letter Dalet With Dagesh",
        "1": "One",
        "\U0001f600": "Emoji: Grinning Face",
        "\u0080": "Control",
        "\u00f6": "Latin Small Letter O With Diaeresis",
    }
    values = list(json.loads(canonical_meta(meta)).values())
    assert values == [
        "Carriage Return",
        "One",
        "Control",
        "Latin Small Letter O With Diaeresis",
        "Euro Sign",
        "Emoji: Grinning Face",
        "Hebrew Letter Dalet With Dagesh",
    ]


def test_D3_the_sample_object_of_RFC_8785_comes_out_as_shown() -> None:
    source = r"""{
      "numbers": [333333333.33333329, 1E30, 4.50, 2e-3, 0.000000000000000000000000001],
      "string": "\u20ac$\u000F\u000aA'\u0042\u0022\u005c\\\"\/",
      "literals": [null, true, false]
    }"""
    assert canonical_meta(parse_meta(source)).decode() == (
        r'{"literals":[null,true,false],"numbers":[333333333.3333333,1e+30,4.5,0.002,1e-27],'
        r'"string":"€$\u000f\nA' + "'" + r'B\"\\\\\"/"}'
    )


@pytest.mark.parametrize("empty", [None, {}, MappingProxyType({})])
def test_D3_empty_meta_is_the_empty_string(empty: Any) -> None:
    assert canonical_meta(empty) == b""


def test_D3_any_mapping_is_meta() -> None:
    assert canonical_meta(MappingProxyType({"b": (1, 2), "a": "x"})) == b'{"a":"x","b":[1,2]}'


def test_D3_integers_that_a_double_holds_exactly_are_taken() -> None:
    meta = {"high": SAFE_INT_MAX, "low": -SAFE_INT_MAX}
    raw = b'{"high":9007199254740991,"low":-9007199254740991}'
    assert canonical_meta(meta) == raw
    back = parse_meta(raw)
    assert back == meta
    assert all(type(value) is int for value in back.values())


def itself() -> list[Any]:
    loop: list[Any] = []
    loop.append(loop)
    return loop


def doubled(times: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(times):
        value = [value, value]
    return value


def nested(depth: int) -> dict[str, Any]:
    """An object of so many levels, itself being the first, with a number in the last."""
    value: Any = {"n": 1}
    for _ in range(depth - 1):
        value = {"a": value}
    assert isinstance(value, dict)
    return value


@pytest.mark.parametrize(
    ("meta", "reason"),
    [
        ({"n": math.nan}, "nan"),
        ({"n": -math.inf}, "-inf"),
        ({"n": SAFE_INT_MAX + 1}, "integer beyond"),
        ({"n": -SAFE_INT_MAX - 1}, "integer beyond"),
        ({"n": 10**5000}, "integer beyond"),
        ({1: "a"}, "key 1;"),
        ({"a": {None: 1}}, "key None;"),
        ({"a": [{b"k": 1}]}, "keys are strings"),
        ({"\ud800": 1}, "surrogate"),
        ({"a": "x\udfff"}, "surrogate"),
        ({"a": b"bytes"}, "contains a bytes"),
        ({"a": {1, 2}}, "contains a set"),
        ({"a": 1j}, "contains a complex"),
        ({"a": "x" * META_BYTES_MAX}, "larger than"),
        ({"a": "\x01" * (META_BYTES_MAX // 2)}, "larger than"),
        ({"a": [0] * META_BYTES_MAX}, "larger than"),
        ({"a": itself()}, "nested deeper"),
        ({"a": doubled(60)}, "larger than|nested deeper"),
        (nested(META_DEPTH_MAX + 1), "nested deeper"),
    ],
)
def test_D3_meta_without_a_canonical_form_is_refused(meta: Any, reason: str) -> None:
    with pytest.raises(BadValue, match=reason):
        canonical_meta(meta)


def test_D3_meta_may_be_as_large_and_as_deep_as_its_limits() -> None:
    assert len(canonical_meta({"a": "x" * (META_BYTES_MAX - 8)})) == META_BYTES_MAX
    with pytest.raises(BadValue, match="larger than"):
        canonical_meta({"a": "x" * (META_BYTES_MAX - 7)})
    deep = canonical_meta(nested(META_DEPTH_MAX))
    assert canonical_meta(parse_meta(deep)) == deep


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        ('{"a":1,"a":1}', "key 'a' twice"),
        ('{"b":1,"a":1,"\\u0061":2}', "key 'a' twice"),
        ('{"x":[{"a":1,"a":2}]}', "key 'a' twice"),
        ('{"a":NaN}', "NaN"),
        ('{"a":Infinity}', "Infinity"),
        ('{"a":-Infinity}', "-Infinity"),
        ('{"a":1e400}', "beyond the range"),
        ('{"a":-1e400}', "beyond the range"),
        ('{"a":' + "9" * 5000 + "}", "beyond the range"),
        ('{"a":9007199254740993}', "as it is written"),
        ('{"a":-9007199254740993}', "as it is written"),
        ('{"a":1000000000000000000000}', "as it is written"),
        ('{"a":"\\ud800"}', "surrogate"),
        ('{"\\udc00":1}', "surrogate"),
        ("[]", "not an object"),
        ("null", "not an object"),
        ('"a"', "not an object"),
        ("1", "not an object"),
        ("{", "not JSON"),
        (" ", "not JSON"),
        ("{'a':1}", "not JSON"),
        ('{"a":01}', "not JSON"),
        ('{"a":1,}', "not JSON"),
        ('{"a":"\n"}', "not JSON"),
        ("{} {}", "not JSON"),
        ("\ufeff{}", "not JSON"),
        ("\ud800", "not UTF-8"),
        (b'{"a":"\xff"}', "not UTF-8"),
        ('{"a":1}'.encode("utf-16"), "not UTF-8"),
        ('{"a":1}'.encode("utf-16-be"), "not JSON"),
        (b"{}" + b" " * META_BYTES_MAX, "larger than"),
        ('{"a":"' + "é" * (META_BYTES_MAX // 2) + '"}', "larger than"),
        ('{"a":' + "[" * 60_000, "nested deeper"),
        ('{"a":' * META_DEPTH_MAX + "{}" + "}" * META_DEPTH_MAX, "nested deeper"),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_D3_meta_that_readers_would_disagree_on_is_refused(raw: bytes | str, reason: str) -> None:
    with pytest.raises(BadValue, match=reason):
        parse_meta(raw)


@pytest.mark.parametrize("raw", ["", b"", "{}", b" { } "])
def test_D3_empty_meta_parses_to_an_empty_object(raw: bytes | str) -> None:
    assert parse_meta(raw) == {}


SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-SAFE_INT_MAX, SAFE_INT_MAX)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=12
)


@given(st.dictionaries(st.text(), VALUES, max_size=6))
def test_D3_canonical_meta_is_read_back_to_the_same_canonical_bytes(meta: dict[str, Any]) -> None:
    raw = canonical_meta(meta)
    assert b"\0" not in raw
    back = parse_meta(raw)
    assert canonical_meta(back) == raw
    # A spelling with other order, spaces and escapes is the same meta.
    loose = json.dumps(dict(reversed(meta.items())), indent=1)
    assert canonical_meta(parse_meta(loose)) == raw


@given(
    st.text(alphabet='{}[]":,.0123456789eE+-\\u dntrfalse', max_size=40) | st.binary(max_size=40)
)
def test_D3_the_parser_gives_an_object_or_a_clean_refusal(raw: bytes | str) -> None:
    try:
        found = parse_meta(raw)
    except BadValue:
        return
    assert isinstance(found, dict)
    assert parse_meta(canonical_meta(found)).keys() == found.keys()


def test_D3_a_write_without_meta_never_loads_the_canonical_json_library() -> None:
    program = (
        "import sys\n"
        "from holdfast.rules.fingerprint import canonical_meta, fingerprint\n"
        "fingerprint(kind='topic', ref='r', meta=canonical_meta({}), body=b'')\n"
        "assert not {'rfc8785', 'json', 'msgspec'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-I", "-c", program], check=True, timeout=60)


_TEXT = st.text(max_size=9) | st.sampled_from(("", "a\0b", "\ud800", "é" * 70))
_BYTES = st.binary(max_size=99) | st.sampled_from((b"", b"x" * 1000))


@given(_TEXT, _TEXT, _TEXT, _TEXT, _TEXT, _BYTES, _BYTES)
def test_D3_the_compiled_formula_gives_what_the_one_in_python_gives(
    kind: str, ref: str, reply_to: str, priority: str, content_type: str, meta: bytes, body: bytes
) -> None:
    """Without a compiled part both are the same."""

    def told() -> list[bytes | str]:
        found: list[bytes | str] = []
        fields: Any = {"kind": kind, "ref": ref, "reply_to": reply_to, "priority": priority}
        for more in ({}, {"content_type": content_type}):
            formula: Any = fingerprint_2 if more else fingerprint
            try:
                found.append(formula(**fields, **more, meta=meta, body=body))
            except BadValue as error:
                found.append(error.message)
        return found

    made, kept = told(), compiled.part
    compiled.part = None  # type: ignore[assignment]
    try:
        assert told() == made
    finally:
        compiled.part = kept
