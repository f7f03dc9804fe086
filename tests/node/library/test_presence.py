"""Presence on real nodes: said by the peer itself, seen by the others, offline."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest

import holdfast
from holdfast.rules.envelope import decode, encode
from holdfast.rules.errors import BadInput, ForgedOrigin
from holdfast.rules.limits import PEER_STALE_MS
from holdfast.rules.presence import KEY


def test_S21_presence_reaches_the_others_and_is_listed_offline_with_when_they_were_seen(
    tmp_path: Path,
) -> None:
    with (
        holdfast.open(tmp_path / "ana", peer="ana", create=True) as ana,
        holdfast.open(tmp_path / "bo", peer="bo", create=True) as bo,
    ):
        here, there = ana.create_mesh("team"), bo.create_mesh("team")
        there.presence.set(display_name="Bo B.", status="away")
        there.presence.set(status="in", summary="Mends the roof.")
        here.presence.set(display_name="Ana")
        for entry in reversed(bo.log.tail(2)):
            ana.apply([entry.raw])
        first, second = here.presence.list()
        assert (first.peer, first.display_name, first.last_seen_at) == ("ana", "Ana", None)
        assert (second.peer, second.display_name, second.status) == ("bo", "Bo B.", "in")
        assert second.summary == "Mends the roof."
        assert second.last_seen_at is not None
        assert not second.stale
        assert here.presence.get("bo") == second
        assert here.presence.get() == first
        assert here.presence.get("cy").updated_at is None
        # The older word comes again: it does not come back.
        ana.apply([bo.log.tail(2)[-1].raw])
        assert here.presence.get("bo").status == "in"


def test_S21_only_the_peer_itself_writes_its_presence(tmp_path: Path) -> None:
    with (
        holdfast.open(tmp_path / "ana", peer="ana", create=True) as ana,
        holdfast.open(tmp_path / "bo", peer="bo", create=True) as bo,
    ):
        ana.create_mesh("team")
        bo.create_mesh("team").presence.set(status="in")
        own = decode(bo.log.tail(1)[0].raw)
        forged = encode(msgspec.structs.replace(own, owner="ana"))
        (done,) = ana.apply([forged])
        assert isinstance(done.error, ForgedOrigin)
        assert ana.mesh("team").presence.get().status == ""


def test_S21_a_text_is_taken_back_and_what_is_bad_changes_nothing(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "ana", peer="ana", create=True) as ana:
        team = ana.create_mesh("team")
        team.presence.set(display_name="Ana", status="in")
        with pytest.raises(BadInput):
            team.presence.set(status="two\nlines")
        assert team.presence.get().status == "in"
        team.presence.set(status="")
        assert (team.presence.get().display_name, team.presence.get().status) == ("Ana", "")
        team.memory.forget(KEY)
        assert team.presence.get().updated_at is None


def test_S21_a_peer_that_was_long_silent_is_stale(tmp_path: Path) -> None:
    with (
        holdfast.open(tmp_path / "ana", peer="ana", create=True) as ana,
        holdfast.open(tmp_path / "bo", peer="bo", create=True) as bo,
    ):
        here = ana.create_mesh("team")
        bo.create_mesh("team").presence.set(status="in")
        ana.apply([bo.log.tail(1)[0].raw])
        later = ana._engine.ctx.now_ms() + PEER_STALE_MS + 60_000
        ana._engine.ctx.now_ms = lambda: later
        assert here.presence.get("bo").stale


def test_S21_presence_for_coroutines(tmp_path: Path) -> None:
    async def story() -> None:
        async with await holdfast.aopen(tmp_path / "ana", peer="ana", create=True) as ana:
            team = await ana.create_mesh("team")
            await team.presence.set(display_name="Ana", status="in")
            assert (await team.presence.get()).display_name == "Ana"
            assert [row.status for row in await team.presence.list()] == ["in"]

    asyncio.run(story())
