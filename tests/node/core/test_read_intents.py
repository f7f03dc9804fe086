"""What a node has read of its own intents is not read again by its fold, and changes nothing."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from holdfast.node.core import commit as commit_module
from holdfast.node.core.read_intents import ReadIntents
from holdfast.rules.envelope import Envelope, encode
from holdfast.rules.errors import BadEntity, BadEnvelope, Refused
from holdfast.rules.limits import READ_INTENTS_BYTES_MAX, READ_INTENTS_MAX
from holdfast.storage.sqlite.store import SqliteStore
from support.commits import commit, context, entry, with_quorum
from support.quorum_state import change, operation


def put(name: str, text: str = "") -> Envelope:
    return change(operation("put", "mission", name, {"title": name, "text": text}))


def test_Q4_the_fold_reads_an_intent_that_was_kept_no_second_time_and_decides_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = with_quorum(SqliteStore(tmp_path / "data.db", sync="normal"))
    ctx, kept, other = context(), put("a"), put("b")
    ctx.read_intents.keep(encode(kept))
    read: list[bytes] = []
    real = commit_module._read

    def noted(mesh: str, raw: bytes) -> Envelope | Refused:
        read.append(raw)
        return real(mesh, raw)

    monkeypatch.setattr(commit_module, "_read", noted)
    results = commit(store, [entry(kept, 1), entry(other, 2)], ctx)
    assert read == [encode(other)]
    assert [one.raw_id for one in results] == [kept.id, other.id]
    assert [one.number for one in results] == [1, 2]
    commit(store, [entry(kept, 3)], ctx)
    assert read == [encode(other), encode(kept)], "it was forgotten with the first fold"
    store.stop()


def test_Q4_an_intent_that_was_kept_for_another_mesh_is_refused_all_the_same(
    tmp_path: Path,
) -> None:
    store = with_quorum(SqliteStore(tmp_path / "data.db", sync="normal"))
    ctx, strange = context(), msgspec.structs.replace(put("a"), mesh="elsewhere")
    ctx.read_intents.keep(encode(strange))
    (result,) = commit(store, [entry(strange, 1)], ctx)
    assert (result.outcome, result.reason) == (None, BadEnvelope.code)
    store.stop()


def test_Q4_what_breaks_a_rule_is_refused_and_not_kept() -> None:
    intents = ReadIntents()
    raw = encode(change(operation("put", "mission", "a", {"text": "no title"})))
    with pytest.raises(BadEntity):
        intents.keep(raw)
    assert intents.take(raw) is None


def test_Q4_intents_that_are_kept_are_bounded_by_number_and_by_bytes() -> None:
    intents = ReadIntents()
    raws = [encode(put(f"m{at}")) for at in range(READ_INTENTS_MAX + 1)]
    for raw in raws:
        intents.keep(raw)
    assert intents.take(raws[0]) is None, "the oldest one went"
    assert intents.take(raws[1]) is not None
    large = [encode(put(f"n{at}", "x" * 200_000)) for at in range(40)]
    for raw in large:
        intents.keep(raw)
    left = [raw for raw in (*raws, *large) if intents.take(raw) is not None]
    assert left == large[-len(left) :]
    assert READ_INTENTS_BYTES_MAX - 300_000 < sum(map(len, left)) <= READ_INTENTS_BYTES_MAX
    intents.keep(raws[0])
    intents.keep(raws[0])
    assert intents.take(raws[0]) is not None
    assert intents._bytes == 0
