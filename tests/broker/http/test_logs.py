"""The whole log of a mesh over HTTP, on both stores: who may read it, what it gives, what it tells
of what is gone.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from holdfast.broker.daemon import BrokerDaemon
from holdfast.protocol.log_wire import ARROW
from holdfast.rules.broker_rows import AUDIT, MEMBER_GRANTS
from holdfast.rules.limits import CONSUMER_KEEP_MS_MAX, CONSUMERS_OF_CALLER_MAX, DAY_MS
from support.broker_people import Person, Reply, broker_up
from support.postgres import name_for, server

LOG = "/v1/meshes/team/log"
RANGE = "/v1/meshes/team/range"
READERS = "/v1/meshes/team/consumers"
CONFIRM = "/v1/meshes/team/confirm"
END_MARK = b"\xff\xff\xff\xff\0\0\0\0"
FOR_EVER_MS = 30 * DAY_MS + CONSUMER_KEEP_MS_MAX


class Team:
    """A mesh with its owner, a member, and one who may audit it."""

    def __init__(self, up: BrokerDaemon) -> None:
        self.up = up
        self.ana, self.bob, self.eve = Person("ana"), Person("bob"), Person("eve")

    async def begin(self) -> None:
        await self.ana.register(self.up, "team")
        await self.ana.invite(self.up, "team", self.bob, self.eve, uses=2)
        await self.ana.declare(self.up, "team", "topic", "news")
        await self.ana.declare(self.up, "team", "queue", "jobs")
        await self.grant(self.eve, *MEMBER_GRANTS, AUDIT)

    async def grant(self, person: Person, *grants: str) -> None:
        path = f"/api/my/meshes/team/members/{person.key.hex()}"
        said = await self.ana.ask(self.up, "PUT", path, {"grants": list(grants)})
        assert said.status == 200, said.body

    async def hand_in(self, *kinds: str) -> list[bytes]:
        raws = [self._envelope(kind, number) for number, kind in enumerate(kinds)]
        for raw in raws:
            assert (await self.ana.hand_in(self.up, "team", raw)).status == 201
        return raws

    def _envelope(self, kind: str, number: int) -> bytes:
        refs = {"topic": "news", "queue": "jobs", "dm": self.bob.key.hex()}
        if kind == "change":
            return self.ana.change("team", f"key {number}", number)
        return self.ana.message("team", kind, refs[kind], f"{number}".encode())

    async def range(self, query: str = "", accept: str = ARROW) -> Reply:
        return await self.eve.ask(self.up, "GET", RANGE + query, headers={"accept": accept})

    async def register(self, start: int = 1, **more: Any) -> Reply:
        return await self.post(READERS, {"consumer": "lake", "from": start, **more})

    async def confirm(self, offset: int, epoch: int = 1) -> Reply:
        asked = {"consumer": "lake", "offset": offset, "epoch": epoch}
        return await self.post(CONFIRM, asked)

    async def post(self, path: str, asked: dict[str, Any]) -> Reply:
        return await self.eve.ask(self.up, "POST", path, asked)

    async def sweep_later(self, later_ms: int) -> None:
        store, now = self.up.broker.store, self.up.broker.source.now_ms()
        await store.sweep(now + later_ms, 1000)


def table(reply: Reply) -> pa.Table:
    assert reply.status == 200, reply.body
    return pa.ipc.open_stream(reply.body).read_all()


@pytest.fixture(params=["sqlite", "postgres"])
def on_team(
    request: pytest.FixtureRequest, tmp_path: Path
) -> Callable[[Callable[[Team], Coroutine[Any, Any, None]]], None]:
    @asynccontextmanager
    async def team() -> AsyncIterator[Team]:
        more = {}
        if request.param == "postgres":
            more["dsn"] = await server().database(name_for(tmp_path))
        async with broker_up(tmp_path, name="hub", **more) as up:
            found = Team(up)
            await found.begin()
            yield found

    def run(work: Callable[[Team], Coroutine[Any, Any, None]]) -> None:
        async def main() -> None:
            async with team() as found:
                await work(found)

        asyncio.run(main())

    return run


OnTeam = Callable[[Callable[[Team], Coroutine[Any, Any, None]]], None]


def test_P1_a_range_has_every_kind_as_arrow_and_as_lines(on_team: OnTeam) -> None:
    async def work(team: Team) -> None:
        raws = await team.hand_in("change", "topic", "dm", "queue", "change")
        place = (await team.eve.ask(team.up, "GET", LOG)).json
        assert place == {"log": "hub/team", "epoch": 1, "first": 1, "head": 5, "lost": None}
        reply = await team.range()
        found = table(reply)
        assert found.column("offset").to_pylist() == [1, 2, 3, 4, 5]
        assert found.column("raw").to_pylist() == raws
        assert found.column("op").to_pylist() == ["state.set", *["message.send"] * 3, "state.set"]
        assert set(found.column("mesh").to_pylist()) == {"team"}
        assert found.schema.metadata[b"holdfast.epoch"] == b"1"
        assert reply.headers["holdfast-head"] == "5"
        some = await team.range("?from=2&to=4&epoch=1", accept="*/*")
        lines = [msgspec.json.decode(line) for line in some.body.splitlines()]
        assert [(line["offset"], line["entity"]) for line in lines] == [
            (2, "topic/news"),
            (3, f"dm/{team.bob.key.hex()}"),
        ]
        assert table(await team.range("?from=6")).num_rows == 0

    on_team(work)


def test_D15_only_who_may_audit_reads_the_whole_log(on_team: OnTeam) -> None:
    async def work(team: Team) -> None:
        await team.hand_in("dm")
        asks: list[tuple[str, str, Any]] = [
            ("GET", LOG, None),
            ("GET", RANGE, None),
            ("GET", READERS, None),
            ("POST", READERS, {"consumer": "lake"}),
            ("POST", CONFIRM, {"consumer": "lake", "offset": 1, "epoch": 1}),
            ("DELETE", f"{READERS}/lake", None),
        ]
        for method, path, asked in asks:
            # The owner has no more than it gave itself.
            for person in (team.ana, team.bob):
                said = await person.ask(team.up, method, path, asked)
                assert (said.status, said.code) == (403, "not_granted"), (method, path)
            stranger = await Person("mallory").ask(team.up, method, path, asked)
            assert stranger.code == "not_a_member"
        members = (await team.ana.ask(team.up, "GET", "/api/my/meshes/team/members")).json
        grants = {one["name"]: one["grants"] for one in members["members"]}
        assert AUDIT not in grants["ana"] + grants["bob"]
        await team.grant(team.eve, *MEMBER_GRANTS)
        assert (await team.range()).code == "not_granted"

    on_team(work)


def test_D15_only_the_owner_invites_somebody_who_may_audit(on_team: OnTeam) -> None:
    async def work(team: Team) -> None:
        path = "/api/my/meshes/team/invites"
        await team.grant(team.eve, *MEMBER_GRANTS, "invite", AUDIT)
        asked = {"grants": ["read", AUDIT]}
        assert (await team.eve.ask(team.up, "POST", path, asked)).code == "not_granted"
        made = await team.ana.ask(team.up, "POST", path, asked)
        assert made.status == 201
        cora = Person("cora")
        joined = await cora.ask(team.up, "POST", "/v1/join", {"secret": made.json["secret"]})
        assert joined.json["grants"] == [AUDIT, "read"]

    on_team(work)


def test_P1_what_the_log_cannot_give_is_an_error(on_team: OnTeam) -> None:
    async def work(team: Team) -> None:
        await team.hand_in("change", "change")
        assert (await team.range("?from=4")).code == "past_end"
        assert (await team.range("?from=1&epoch=2")).code == "epoch_changed"
        assert (await team.range("?from=0")).code == "bad_input"
        assert (await team.range("?from=2&to=1")).code == "bad_input"
        assert (await team.confirm(1)).code == "unknown_consumer"
        assert (await team.register(4)).code == "past_end"
        assert (await team.register(0)).code == "bad_input"
        assert (await team.register(1 << 70)).status == 400
        assert (await team.register()).status == 200
        assert (await team.confirm(3)).code == "past_end"
        assert (await team.confirm(1, epoch=2)).code == "epoch_changed"
        assert (await team.confirm(-1)).code == "bad_input"
        name = {"consumer": "bad\0name"}
        assert (await team.post(READERS, name)).status == 400

    on_team(work)


def test_P1_a_reader_is_kept_its_part_and_told_what_it_lost(on_team: OnTeam) -> None:
    async def work(team: Team) -> None:
        await team.hand_in("topic", "change")
        await team.sweep_later(FOR_EVER_MS)  # gone before anybody reads
        assert (await team.register()).json["lost"] is None
        await team.hand_in("dm", "topic", "change")
        as_lake = "&consumer=lake"
        await team.sweep_later(FOR_EVER_MS - DAY_MS)
        seqs = table(await team.range(f"?from=1{as_lake}")).column("offset").to_pylist()
        assert seqs == [2, 3, 4, 5]
        assert (await team.confirm(2)).json["frontier"] == 2
        await team.sweep_later(FOR_EVER_MS)
        refused = await team.range(f"?from=3{as_lake}")
        assert (refused.status, refused.code) == (410, "truncated")
        assert "2 of the offsets 3 to 4" in refused.json["error"]["message"]
        assert table(await team.range(f"?from=5{as_lake}")).num_rows == 1
        # Another reader begins here, and knows of nothing that it misses.
        assert table(await team.range("?from=1")).column("offset").to_pylist() == [2, 5]
        place = (await team.eve.ask(team.up, "GET", f"{LOG}?consumer=lake")).json
        assert place["lost"] == {"first": 3, "last": 4, "rows": 2}
        assert (await team.register(known=3)).json["lost"] is not None
        assert (await team.register(known=4)).json["lost"] is None
        assert table(await team.range(f"?from=3{as_lake}")).num_rows == 1
        (reader,) = (await team.eve.ask(team.up, "GET", READERS)).json["consumers"]
        assert (reader["name"], reader["frontier"], reader["lag"]) == ("lake", 2, 3)
        assert reader["member"] == team.eve.key.hex()
        dropped = await team.eve.ask(team.up, "DELETE", f"{READERS}/lake")
        assert dropped.json == {"dropped": True}

    on_team(work)


def test_P1_what_goes_while_a_range_is_read_cuts_it_off(
    on_team: OnTeam, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.rules.limits.BROKER_RANGE_ROWS", 2)

    async def work(team: Team) -> None:
        await team.hand_in(*["topic"] * 6)
        await team.register()
        store = team.up.broker.store
        plain, pages = store.log_page, 0

        async def page(*args: Any) -> Any:
            nonlocal pages
            pages += 1
            if pages == 2:
                await team.sweep_later(FOR_EVER_MS)
            return await plain(*args)

        monkeypatch.setattr(store, "log_page", page)
        cut = await team.range("?from=1&consumer=lake")
        assert table(cut).num_rows == 2
        assert not cut.body.endswith(END_MARK)
        assert (await team.range("?from=3&consumer=lake")).code == "truncated"
        assert (await team.range("?from=3")).body.endswith(END_MARK)

    on_team(work)


def test_P1_one_key_has_a_bounded_number_of_readers(on_team: OnTeam) -> None:
    async def work(team: Team) -> None:
        for number in range(CONSUMERS_OF_CALLER_MAX):
            assert (await team.post(READERS, {"consumer": f"r{number}"})).status == 200
        assert (await team.post(READERS, {"consumer": "more"})).code == "too_many"
        assert (await team.post(READERS, {"consumer": "r0"})).status == 200

    on_team(work)
