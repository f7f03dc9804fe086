"""Reading a whole batch at once gives what reading row by row gives, whatever the bytes."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from holdfast.pipeline.logs.arrow import LOG
from holdfast.pipeline.logs.log import open_log
from holdfast.pipeline.logs.ordinary import ordinary
from holdfast.pipeline.logs.unpack import ENVELOPE, decode_header, one_by_one
from holdfast.rules.ids import id_text
from support import envelopes
from support.keeping import fill, make_home, team
from support.odd_envelopes import every_change, one_of_each, random_envelope

_SAID = {"id": 2, "mesh": 3, "op": 4, "entity": 5, "origin": 7, "lamport": 10}


def log_of(raws: list[bytes], random: Random) -> pa.RecordBatch:
    """A log whose columns say what the bytes do, where bytes and columns allow it and mostly."""
    rows = [said(raw) for raw in raws]
    for row in rows:
        if random.random() < 0.05:
            row[random.choice(["mesh", "op", "entity", "origin"])] = "else"
    count = len(raws)
    columns: dict[str, list[Any]] = {
        "log": ["ana"] * count,
        "epoch": [1] * count,
        "offset": list(range(1, count + 1)),
        **{name: [row[name] for row in rows] for name in _SAID},
        "recorded_at": [0] * count,
        "raw": raws,
    }
    return pa.RecordBatch.from_pydict({name: columns[name] for name in LOG.names}, schema=LOG)


def said(raw: bytes) -> dict[str, Any]:
    row: dict[str, Any] = dict.fromkeys(_SAID, "?") | {"id": id_text(bytes(16)), "lamport": 1}
    try:
        fields = msgspec.msgpack.decode(raw)
        found = {name: fields[place] for name, place in _SAID.items()}
    except (msgspec.DecodeError, UnicodeDecodeError, LookupError, TypeError):
        return row
    for name, value in found.items():
        if name == "id" and isinstance(value, bytes) and len(value) == 16:
            row[name] = id_text(value)
        elif (name == "lamport" and type(value) is int and 0 <= value < 2**63) or (
            name not in ("id", "lamport") and isinstance(value, str)
        ):
            row[name] = value
    return row


def assert_alike(batch: pa.RecordBatch) -> None:
    found = decode_header(batch)
    found.validate(full=True)
    assert found.schema == ENVELOPE
    expected = one_by_one(batch)
    for name, column in zip(ENVELOPE.names[len(LOG.names) :], expected, strict=True):
        assert found.column(name).to_pylist() == column.to_pylist(), name


def test_P1_every_change_of_every_field_is_judged_at_once_as_by_itself() -> None:
    for raw in one_of_each("key", {"a": 1}, lamport=2):
        assert_alike(log_of([raw, *every_change(raw), raw], Random(0)))
    for raw in one_of_each("ключ", "text", lamport=4, base=(3, "ana"))[::4]:
        assert_alike(log_of([raw, *every_change(raw), raw], Random(0)))


@given(seed=st.integers(0, 2**64 - 1))
def test_P1_a_batch_that_is_read_at_once_is_what_its_rows_are_one_by_one(seed: int) -> None:
    random = Random(seed)
    raws = [random_envelope(random) for _ in range(random.choice((1, 2, 24)))]
    batch = log_of(raws, random)
    assert_alike(batch)
    cut = random.randrange(len(raws))
    assert_alike(batch.slice(cut))
    assert_alike(batch.slice(0, cut))


def test_P1_what_a_node_writes_is_ordinary_but_for_files(tmp_path: Path) -> None:
    """Otherwise the comparison above compares slow code with itself."""
    with make_home(tmp_path / "home") as node:
        fill(team(node), 3)
        team(node).facts.append("größe", "ist", {"a": ["\u2028", 2]}, meta={"ä": 1})
    log = open_log(str(tmp_path / "home"))
    (batch,) = log.batches(1, 1, log.place().head + 1)
    taken = set(ordinary(batch)[0].tolist())
    left = {op for row, op in enumerate(batch.column("op").to_pylist()) if row not in taken}
    assert left == {"file.share"}
    messages = [
        envelopes.message_send("topic", "news", b"%d" % number, meta=b'{"a":1}')
        for number in range(3)
    ]
    assert len(ordinary(log_of(messages, Random(1)))[0]) == 3
