"""D10: any text names a request, and every client computes the same id from it."""

from __future__ import annotations

import hashlib
import json
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.rules.errors import BadId, OverLimit, Refused
from holdfast.rules.idempotency import id_of_key
from holdfast.rules.ids import check_id, id_text, id_time_ms
from holdfast.rules.limits import IDEMPOTENCY_KEY_BYTES_MAX
from support.project import SOURCE

VECTOR_FILES = SOURCE / "protocol" / "vectors"

VECTORS: list[dict[str, str]] = json.loads(
    (VECTOR_FILES / "idempotency_key.json").read_text("utf-8")
)["vectors"]


@pytest.mark.parametrize("v", VECTORS, ids=lambda v: v["name"])
def test_D10_the_published_keys_give_the_published_ids(v: dict[str, str]) -> None:
    assert id_text(id_of_key(v["key"], v["mesh"], v["peer"])) == v["id"]


def test_D10_the_published_keys_vary_every_field() -> None:
    for name in ("mesh", "peer", "key"):
        assert len({v[name] for v in VECTORS}) >= 2, name
    derived = [v["id"] for v in VECTORS if uuid.UUID(v["id"]).version == 8]
    assert len(set(derived)) == len(derived) >= 10


@given(st.text(max_size=300))
def test_D10_a_key_is_refused_or_becomes_one_id_of_version_8(key: str) -> None:
    """Whatever the text is; written again from the definition."""
    printable = all(ord(char) >= 32 and not 127 <= ord(char) < 160 for char in key)
    fits = 1 <= len(key.encode(errors="replace")) <= IDEMPOTENCY_KEY_BYTES_MAX
    if not (key and printable and fits and key == key.strip() and key.isprintable()):
        try:
            raw = id_of_key(key, "team", "ana")
        except Refused:
            return
    else:
        raw = id_of_key(key, "team", "ana")
    joined = "\0".join(("holdfast idempotency key 1", "team", "ana", key)).encode()
    by_hand = int.from_bytes(hashlib.sha256(joined).digest()[:16])
    known = uuid.UUID(bytes=check_id(raw))
    assert (known.version, known.variant) == (8, uuid.RFC_4122)
    marks = 0xF << 76 | 0x3 << 62
    assert known.int & ~marks == by_hand & ~marks
    assert id_time_ms(raw) == 0, "a computed id tells no time"


@pytest.mark.parametrize(
    ("key", "error"),
    [
        *[("", BadId), (" order", BadId), ("order\n", BadId), ("a\0b", BadId), ("a\x7fb", BadId)],
        *[("a\x85b", BadId), ("\ud800", BadId), (7, BadId), (None, BadId)],
        *[("x" * (IDEMPOTENCY_KEY_BYTES_MAX + 1), OverLimit), ("é" * 128, OverLimit)],
    ],
)
def test_D10_what_is_no_key_is_refused_in_words(key: str, error: type[Exception]) -> None:
    with pytest.raises(error) as caught:
        id_of_key(key, "team", "ana")
    assert "idempotency key" in str(caught.value)
