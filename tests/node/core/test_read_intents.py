"""What a node has read of its own intents is not read again by its fold, and changes nothing."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from holdfast.node.core import commit as commit_module
from holdfast.node.core.read_intents import ReadIntents
from holdfast.node.core.runs import plain_commits, reading
from holdfast.rules.envelope import Envelope, encode
from holdfast.rules.errors import BadEntity, BadEnvelope, Refused
from holdfast.rules.limits import READ_INTENTS_BYTES_MAX, READ_INTENTS_MAX
from holdfast.rules.quorum.plain_intents import PlainPut, read_plain
from holdfast.storage.sqlite.store import SqliteStore
from support.commits import commit, context, entry, with_quorum
from support.quorum_state import change, operation


def keep(intents: ReadIntents, made: Envelope) -> None:
    intents.keep(encode(made), made)


def take(intents: ReadIntents, raw: bytes) -> object:
    (found,) = intents.take([raw])
    return found


def put(name: str, text: str = "") -> Envelope:
    return change(operation("put", "mission", name, {"title": name, "text": text}))


def test_Q4_the_fold_reads_an_intent_that_was_kept_no_second_time_and_decides_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = with_quorum(SqliteStore(tmp_path / "data.db", sync="normal"))
    ctx, kept, other = context(), put("a"), put("b")
    patched = change(operation("patch", "mission", "a", {"text": "new"}))
    keep(ctx.read_intents, kept)
    keep(ctx.read_intents, patched)
    read: list[bytes] = []
    real, real_plain = reading.read_envelope, read_plain

    def noted(mesh: str, raw: bytes) -> Envelope | Refused:
        read.append(raw)
        return real(mesh, raw)

    def noted_plain(raw: bytes) -> PlainPut | None:
        read.append(raw)
        return real_plain(raw)

    monkeypatch.setattr(commit_module, "read_envelope", noted)
    monkeypatch.setattr(plain_commits, "read_plain", noted_plain)
    results = commit(store, [entry(kept, 1), entry(other, 2)], ctx)
    assert read == [encode(other)]
    assert [one.raw_id for one in results] == [kept.id, other.id]
    assert [one.number for one in results] == [1, 2]
    commit(store, [entry(patched, 3)], ctx)
    assert read == [encode(other)]
    commit(store, [entry(kept, 4)], ctx)
    assert read[1] == encode(kept), "it was forgotten with the first fold"
    commit(store, [entry(patched, 5)], ctx)
    assert read[-1] == encode(patched)
    store.stop()


def test_Q4_an_intent_that_was_kept_for_another_mesh_is_refused_all_the_same(
    tmp_path: Path,
) -> None:
    store = with_quorum(SqliteStore(tmp_path / "data.db", sync="normal"))
    ctx, strange = context(), msgspec.structs.replace(put("a"), mesh="elsewhere")
    keep(ctx.read_intents, strange)
    (result,) = commit(store, [entry(strange, 1)], ctx)
    assert (result.outcome, result.reason) == (None, BadEnvelope.code)
    store.stop()


def test_Q4_what_breaks_a_rule_is_refused_and_not_kept() -> None:
    intents = ReadIntents()
    bad = change(operation("put", "mission", "a", {"text": "no title"}))
    with pytest.raises(BadEntity):
        keep(intents, bad)
    assert take(intents, encode(bad)) is None


def test_Q4_intents_that_are_kept_are_bounded_by_number_and_by_bytes() -> None:
    intents = ReadIntents()
    small = [put(f"m{at}") for at in range(READ_INTENTS_MAX + 1)]
    for made in small:
        keep(intents, made)
    assert take(intents, encode(small[0])) is None, "the oldest one went"
    assert take(intents, encode(small[1])) is not None
    large = [put(f"n{at}", "x" * 200_000) for at in range(40)]
    for made in large:
        keep(intents, made)
    raws = [encode(made) for made in large]
    every = [*map(encode, small), *raws]
    left = [raw for raw, found in zip(every, intents.take(every), strict=True) if found is not None]
    assert left == raws[-len(left) :]
    assert READ_INTENTS_BYTES_MAX - 300_000 < sum(map(len, left)) <= READ_INTENTS_BYTES_MAX
    keep(intents, small[0])
    keep(intents, small[0])
    assert take(intents, encode(small[0])) is not None
    assert intents._bytes == 0
