"""Sharing meshes over a connection: two daemons are asked over HTTP, and ask a real broker."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast
from holdfast.rules.errors import Conflict, HoldfastError, NotShared, UnknownKey
from support.daemon import make_home, running
from support.live_broker import LiveBroker
from support.waiting import until

PATIENCE_MS = 60_000


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[tuple[holdfast.Node, holdfast.Node]]:
    """Ana, who has the mesh `team`, and bo, who has none of this name."""
    with (
        running(make_home(tmp_path / "ana", "ana")) as one,
        running(make_home(tmp_path / "bo", "bo", "other")) as two,
        holdfast.connect(one.unix) as ana,
        holdfast.connect(two.unix) as bo,
    ):
        yield ana, bo


def test_D15_U4_a_mesh_is_shared_joined_used_and_left_over_http(
    nodes: tuple[holdfast.Node, holdfast.Node], tmp_path: Path
) -> None:
    ana, bo = nodes
    ana.mesh("team").state.set("build", "green")
    with LiveBroker(tmp_path / "hub") as hub:
        published = ana.sharing.publish("team", broker=hub.url)
        assert published.mesh == "team"
        invite = ana.sharing.invite("team", uses=1, hours=1)
        assert [known.uses_left for known in ana.sharing.invites("team") if known.id == invite.id]
        assert bo.sharing.join(invite.text).mesh == "team"
        until(lambda: bo.mesh("team").state.get("build") == "green")

        assert {member.name for member in bo.sharing.members("team")} == {"ana", "bo"}
        assert {member.name for member in ana.sharing.known_members("team")} >= {"ana"}
        grants = ana.sharing.grant("team", "bo", ["read", "write", "send"]).grants
        assert "write" in grants
        with pytest.raises(HoldfastError):
            bo.sharing.grant("team", "ana", ["read"])

        ana.sharing.declare("team", "topic", "news")
        ana.sharing.declare("team", "queue", "jobs", visibility_ms=60_000, deliveries_max=2)
        declared = {(place.kind, place.ref) for place in bo.sharing.destinations("team")}
        assert declared == {("topic", "news"), ("queue", "jobs")}
        bo.sharing.subscribe("team", "news")
        assert "news" in bo.sharing.subscriptions("team")
        ana.mesh("team").send("at ten", topic="news")
        until(lambda: [got.preview for got in bo.inbox.list()] == ["at ten"])

        ana.mesh("team").send("paint", queue="jobs")
        until(lambda: ana.sharing.queues("team")[0].ready == 1)
        (taken,) = bo.sharing.take("team", "jobs")
        assert taken.content == b"paint"
        assert bo.sharing.settle("team", "jobs", taken.handle, "dead", "no paint")
        (letter,) = ana.sharing.dead_letters("team", "jobs")
        assert letter.reason == "no paint"
        assert ana.sharing.revive("team", "jobs", letter.seq)

        assert bo.sharing.unsubscribe("team", "news")
        assert ana.sharing.drop_destination("team", "topic", "news")
        again = ana.sharing.invite("team")
        assert ana.sharing.drop_invite("team", again.id)
        with pytest.raises(UnknownKey):
            ana.sharing.remove_member("team", "nobody")
        assert bo.sharing.leave("team").mesh == "team"
        assert bo.mesh("team").info().kind == "personal"
        assert bo.mesh("team").state.get("build") == "green"
        with pytest.raises(NotShared):
            bo.sharing.members("team")
        assert ana.sharing.move("team", hub.url).broker_url == hub.url
        with pytest.raises(Conflict):
            ana.sharing.leave("team")
        assert ana.sharing.leave("team", remove=True).mesh == "team"
