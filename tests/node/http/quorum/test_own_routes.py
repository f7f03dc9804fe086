"""Our own calls of the quorum, on a real daemon whose majority the test switches."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from holdfast.node.quorum.api import ReadDemand
from holdfast.node.quorum.remote import RemoteQuorum
from holdfast.node.settings import QuorumSettings, Settings
from holdfast.rules.bodies import encode_body
from holdfast.rules.errors import (
    AlreadyExists,
    BadInput,
    LeaseHeld,
    NoDaemon,
    NotFresh,
    NoVoters,
    OutcomeUnknown,
    RevisionMoved,
    UnknownPeer,
)
from holdfast.rules.ids import parse_id
from holdfast.rules.quorum.intents import EntityChange, LeaseAcquire
from support.envelopes import MESH
from support.quorum_daemon import PATH, QuorumUp, quorum_daemon
from support.quorum_state import change, operation


@pytest.fixture
def up(tmp_path: Path) -> Iterator[QuorumUp]:
    with quorum_daemon(tmp_path) as made:
        yield made


def call(up: QuorumUp, method: str, path: str, **fields: Any) -> tuple[int, Any]:
    body = json.dumps(fields).encode() if method in ("POST", "PUT") else None
    answer = up.ask(method, f"{PATH}{path}", body)
    return answer.status, answer.json


def put(up: QuorumUp, id: str, title: str, **more: Any) -> tuple[int, Any]:
    operation = {"type": "mission", "id": id, "fields": {"title": title}, **more}
    return call(up, "POST", "/entities", operations=[operation], timeout_ms=200)


def test_Q9_a_read_says_how_fresh_it_is_and_is_refused_rather_than_older(up: QuorumUp) -> None:
    status, receipt = put(up, "m/1", "Sail", base=0)
    assert (status, receipt["state"], receipt["outcome"]) == (200, "committed", "applied")
    assert receipt["revisions"] == [{"type": "mission", "id": "m/1", "revision": 1}]
    status, found = call(up, "GET", "/entities/mission/m/1")
    assert status == 200
    assert found["entity"]["fields"] == {"title": "Sail"}
    assert (found["read"]["mode"], found["read"]["stalenessMs"]) == ("fresh", 0)
    up.lose_quorum()
    assert call(up, "GET", "/entities/mission/m/1")[1]["error"]["code"] == NotFresh.code
    status, found = call(up, "GET", "/entities/mission/m/1?read=local")
    assert (status, found["read"]["mode"]) == (200, "degraded")
    assert set(found["read"]) == {
        *("mode", "asOf", "sourceNodeId", "snapshotVersion", "stalenessMs"),
        *("queueDepth", "pendingWriteCount", "failedWriteCount"),
    }
    assert call(up, "GET", "/entities/mission?staleness_ms_max=60000")[0] == 200
    assert call(up, "GET", "/entities/mission?staleness_ms_max=0")[0] == 503
    assert call(up, "GET", "/entities/mission?read=local&staleness_ms_max=x")[0] == 400
    assert call(up, "GET", "/entities/mission/m2?read=local")[1]["error"]["code"] == (
        "unknown_entity"
    )
    assert call(up, "GET", "/entities/ship?read=local")[0] == 422


def test_Q6_a_write_without_a_quorum_is_202_and_its_outcome_is_found_later(up: QuorumUp) -> None:
    assert put(up, "m1", "Sail")[0] == 200
    up.lose_quorum()
    status, receipt = put(up, "m1", "Row", base=1)
    assert (status, receipt["state"], receipt["reason"]) == (202, "queued", "no_quorum")
    status, page = call(up, "GET", "/writes?status=pending")
    (write,) = page["writes"]
    assert (write["id"], write["entity"], write["op"]) == (
        *(receipt["id"], "mission/m1", "entity.change"),
    )
    assert page["counts"] == {"queue_depth": 1, "pending": 1, "failed": 0}
    assert call(up, "GET", "")[1]["writes"]["pending"] == 1
    up.regain()
    assert call(up, "POST", "/replay")[0] == 200
    status, write = call(up, "GET", f"/writes/{receipt['id']}")
    assert (write["status"], write["outcome"]) == ("applied", "applied")
    assert call(up, "GET", "/entities/mission/m1")[1]["entity"]["fields"] == {"title": "Row"}
    assert call(up, "GET", "/history/mission/m1")[1]["revisions"][1]["intent"] == receipt["id"]


def test_Q7_a_conflict_waits_with_both_sides_until_an_agent_settles_it(up: QuorumUp) -> None:
    put(up, "m1", "Sail")
    put(up, "m1", "Row", base=1)
    status, refused = put(up, "m1", "Fly", base=1)
    assert (status, refused["error"]["code"]) == (409, RevisionMoved.code)
    (conflict,) = call(up, "GET", "/conflicts")[1]["conflicts"]
    (side,) = conflict["sides"]
    assert (side["wanted"], side["stands"]["fields"]) == ({"title": "Fly"}, {"title": "Row"})
    number = conflict["number"]
    status, error = call(up, "POST", f"/conflicts/{number}/resolve", take="fields")
    assert (status, error["error"]["code"]) == (400, "bad_input")
    status, done = call(up, "POST", f"/conflicts/{number}/resolve", take="intent", by="agent:7")
    assert (status, done["receipt"]["outcome"]) == (200, "applied")
    assert done["resolution"].startswith("intent by agent:7")
    assert call(up, "GET", "/entities/mission/m1")[1]["entity"]["fields"] == {"title": "Fly"}
    assert call(up, "GET", "/conflicts")[1]["conflicts"] == []
    again = call(up, "POST", f"/conflicts/{number}/resolve", take="committed")
    assert again[1]["error"]["code"] == "already_resolved"
    assert call(up, "GET", f"/conflicts/{number}")[1]["resolution"] == done["resolution"]
    assert call(up, "GET", "/conflicts/999")[0] == 404


def test_Q7_a_queued_write_that_clashes_is_settled_by_its_own_id(up: QuorumUp) -> None:
    put(up, "m1", "Sail")
    up.lose_quorum()
    mine = put(up, "m1", "Mine", base=1)[1]["id"]
    up.decided_elsewhere(change(operation("put", "mission", "m1", {"title": "Theirs"}, base=1)))
    up.regain()
    call(up, "POST", "/replay")
    write = call(up, "GET", f"/writes/{mine}")[1]
    assert (write["status"], write["outcome"]) == ("failed", "conflict_requires_merge")
    assert call(up, "GET", "")[1]["writes"]["failed"] == 1
    both = {"type": "mission", "id": "m1", "fields": {"title": "Both"}}
    status, done = call(
        up, "POST", f"/writes/{mine}/resolve", take="fields", operations=[both], by="ana"
    )
    assert (status, done["receipt"]["state"]) == (200, "committed")
    assert call(up, "GET", "/entities/mission/m1")[1]["entity"]["fields"] == {"title": "Both"}
    view = call(up, "GET", "")[1]
    assert (view["writes"], view["conflicts"]) == (
        {"queue_depth": 0, "pending": 0, "failed": 0},
        0,
    )
    assert call(up, "POST", f"/writes/{mine}/resolve", take="committed")[0] == 409


def test_Q13_the_status_tells_operators_what_they_must_know(up: QuorumUp) -> None:
    status, view = call(up, "GET", "")
    assert status == 200
    order = view["order"]
    assert (order["coordinator"], order["lease_epoch"], order["has_quorum"]) == ("ana", 1, True)
    assert (view["minority"], view["handoff"], view["paused"]) == ("queue", "park", False)
    assert any("one voter decides alone" in text for text in view["warnings"])
    assert call(up, "POST", "/pause")[1] == {"mesh": MESH, "paused": True}
    assert call(up, "GET", "")[1]["paused"] is True
    assert call(up, "POST", "/resume")[1] == {"mesh": MESH, "paused": False}
    settings = {"type": "mesh_settings", "id": "quorum", "fields": {"minority": "reject"}}
    assert call(up, "POST", "/entities", operations=[settings])[0] == 200
    assert call(up, "GET", "")[1]["minority"] == "reject"
    up.lose_quorum()
    assert put(up, "m9", "Sail")[0] == 503
    assert any("no majority" in text for text in call(up, "GET", "")[1]["warnings"])


def test_Q13_U4_the_figures_say_what_the_status_says(up: QuorumUp) -> None:
    put(up, "m1", "Sail")
    up.lose_quorum()
    put(up, "m2", "Row")
    shown = up.ask("GET", "/metrics").body.decode()
    found = dict(line.rsplit(" ", 1) for line in shown.splitlines() if "holdfast_quorum_" in line)
    told = {name: float(value) for name, value in found.items() if not name.startswith("#")}
    assert told['holdfast_quorum_majority_heard{mesh="team"}'] == 0
    assert told['holdfast_quorum_lease_epoch{mesh="team"}'] == 1
    assert told['holdfast_quorum_committed_index{mesh="team"}'] == 1
    assert told['holdfast_quorum_writes{mesh="team",status="pending"}'] == 1
    assert told['holdfast_quorum_member_linked{mesh="team",peer="ana"}'] == 1
    assert told['holdfast_quorum_replay_paused{mesh="team"}'] == 0


def test_Q13_voters_and_coordinators_change_by_call(up: QuorumUp) -> None:
    assert call(up, "POST", "/members/bo?timeout_ms=1500")[0] == 200
    assert call(up, "DELETE", "/members/bo")[0] == 200
    assert call(up, "POST", "/members/nobody")[1]["error"]["code"] == UnknownPeer.code
    assert call(up, "POST", "/transfer", to="ana")[1]["lease_epoch"] == 2
    assert call(up, "POST", "/step-down")[1]["lease_epoch"] == 3
    assert call(up, "POST", "/forget-claim", peer="dora")[0] == 200
    assert call(up, "POST", "/forget-claim", peer="nobody")[1]["error"]["code"] == UnknownPeer.code
    assert call(up, "POST", "/recover")[0] == 400
    assert call(up, "POST", "/recover", accept_loss=True)[1]["incarnation"] == 2
    assert call(up, "POST", "/init", voters=["bo"])[1]["error"]["code"] == AlreadyExists.code
    assert up.operators.asked[:2] == [("add", ("bo", 1500)), ("remove", ("bo", None))]


NEVER_READ = (
    *(f"{PATH}{rest}" for rest in ("", "/conflicts", "/entities/mission", "/writes")),
    *(f"/v1/meshes/{MESH}/{rest}" for rest in ("audit", "audit-verdicts", "audit/activityLog")),
    *(f"/v1/meshes/{MESH}/telemetry", "/api/mesh/state", "/api/nodes", "/api/settings"),
)


def test_Q13_R4_whoever_asks_for_ever_and_reads_no_answer_keeps_nobody_from_deciding(
    up: QuorumUp,
) -> None:
    for number in range(60):
        assert put(up, f"m{number}", "x" * 900)[0] == 200
        event = json.dumps({"payload": "y" * 900}).encode()
        assert up.ask("POST", f"/v1/meshes/{MESH}/audit/activityLog", event).status < 300
    with ExitStack() as open_:
        for path in NEVER_READ:
            assert up.ask("GET", path).status == 200, path
            for _ in range(4):
                line = open_.enter_context(socket.socket(socket.AF_UNIX))
                line.connect(up.daemon.unix.removeprefix("unix:"))
                line.setblocking(False)
                asked = f"GET {path} HTTP/1.1\r\nHost: holdfast\r\n\r\n".encode() * 500
                # As much as is taken: the daemon stops reading at some time.
                with suppress(BlockingIOError):
                    while asked:
                        asked = asked[line.send(asked) :]
        for number in range(20):
            assert put(up, f"after{number}", "decided")[0] == 200
            assert call(up, "GET", f"/entities/mission/after{number}")[0] == 200


def test_Q13_a_mesh_without_voters_says_so(up: QuorumUp) -> None:
    answer = up.ask("GET", "/v1/meshes/other/quorum")
    assert (answer.status, answer.code) == (409, NoVoters.code)
    assert up.ask("GET", "/v1/meshes/other/quorum/writes").code == "unknown_mesh"


def test_Q9_the_remote_quorum_has_the_same_verbs_and_raises_the_same_errors(up: QuorumUp) -> None:
    async def story() -> None:
        remote = up.remote
        body, other = (
            encode_body(EntityChange((operation("put", "mission", "m1", {"title": t}, base=0),)))
            for t in ("Sail", "Row")
        )
        receipt = await remote.intend(MESH, "entity.change", "mission/m1", body)
        assert (receipt.state, receipt.revisions[0].revision) == ("committed", 1)
        again = await remote.intend(MESH, "entity.change", "mission/m1", body, id=receipt.id)
        assert again.number == receipt.number
        with pytest.raises(RevisionMoved):
            await remote.intend(MESH, "entity.change", "mission/m1", other)
        assert (await remote.confirm(MESH, ReadDemand())).mode == "fresh"
        assert (await remote.status(MESH)).coordinator == "ana"
        with pytest.raises(NoVoters):
            await remote.status("other")
        with pytest.raises(BadInput):
            await remote.recover(MESH, accept_loss=False)
        assert (await remote.replay(MESH)).attempted == 0
        await remote.pause(MESH)
        assert (await remote.view(MESH)).paused
        await remote.resume(MESH)
        assert (await remote.transfer(MESH, None)).lease_epoch == 2
        assert (await remote.step_down(MESH)).lease_epoch == 3
        assert (await remote.add(MESH, "bo")).mesh == MESH
        assert (await remote.remove(MESH, "bo", timeout_ms=1000)).mesh == MESH
        assert (await remote.remove(MESH, "ana", timeout_ms=1000, last=True)).mesh == MESH
        assert up.operators.asked[-1] == ("remove", ("ana", 1000, True))
        assert (await remote.forget_claim(MESH, "dora")).mesh == MESH
        with pytest.raises(AlreadyExists):
            await remote.init(MESH, ("bo",))
        with pytest.raises(NoDaemon):
            await type(remote)(f"unix:{up.home}/nobody.sock").status(MESH)

    asyncio.run(story())


def test_Q3_a_daemon_that_goes_away_in_a_write_leaves_its_outcome_unknown(tmp_path: Path) -> None:
    place = tmp_path / "api.sock"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(place))
        listening.listen()

        def cut() -> None:
            line, _ = listening.accept()
            with line:
                line.recv(1)

        for wanted in (OutcomeUnknown, NoDaemon):
            thread = threading.Thread(target=cut)
            thread.start()
            remote = RemoteQuorum(f"unix:{place}")
            work: Any = (
                remote.intend(MESH, "entity.change", "mission/m1", b"")
                if wanted is OutcomeUnknown
                else remote.status(MESH)
            )
            with pytest.raises(wanted) as caught:
                asyncio.run(work)
            thread.join(60)
            assert wanted is NoDaemon or "send it again with the id 01" in caught.value.hint


def test_Q13_the_settings_of_a_node_count_where_the_mesh_has_none(tmp_path: Path) -> None:
    settings = QuorumSettings(minority="reject", commit_timeout_ms=150)
    with quorum_daemon(tmp_path, Settings(quorum=settings)) as up:
        assert call(up, "GET", "")[1]["minority"] == "reject"
        up.daemon.run(up.shared.gate.clear)
        asked = {"type": "mission", "id": "m1", "fields": {"title": "Sail"}}
        status, said = call(up, "POST", "/entities", operations=[asked])
        assert (status, said["error"]["code"]) == (500, OutcomeUnknown.code)
        up.daemon.run(up.shared.gate.set)
        up.lose_quorum()
        assert put(up, "m1", "Sail")[1]["error"]["code"] == "no_quorum"
        assert call(up, "GET", "/writes")[1]["writes"] == []
    for bad in ({"commit_timeout_ms": 0}, {"snapshot_interval_ms": -1}, {"auth_peers": [""]}):
        with pytest.raises(BadInput):
            Settings(quorum=QuorumSettings(**bad)).check()


def test_Q13_a_lease_is_waited_for_and_a_caller_that_goes_away_stops_waiting(
    up: QuorumUp,
) -> None:
    async def story() -> None:
        remote = up.remote
        asked = encode_body(LeaseAcquire(30_000))
        first = await remote.intend(MESH, "lease.acquire", "deploy", asked)
        with pytest.raises(LeaseHeld):
            await remote.intend(MESH, "lease.acquire", "deploy", asked)
        waits = encode_body(LeaseAcquire(30_000, wait=True))
        second = await remote.intend(MESH, "lease.acquire", "deploy", waits)
        session = parse_id(second.id)
        assert not await remote.lease_granted(MESH, "deploy", session, timeout_ms=1)
        assert await remote.lease_granted(MESH, "deploy", parse_id(first.id), timeout_ms=1)
        gate = up.daemon.daemon.api.gate
        waiting = asyncio.create_task(
            remote.lease_granted(MESH, "deploy", session, timeout_ms=60_000)
        )
        await _until(lambda: gate.now["poll"] == 1)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        await _until(lambda: gate.now["poll"] == 0)

    asyncio.run(story())
    (lease,) = call(up, "GET", "/leases")[1]["leases"]
    assert (lease["name"], lease["holder"], lease["waiting"]) == ("deploy", "ana", ["ana"])
    assert call(up, "GET", "/leases/deploy")[1]["fence"] == lease["fence"]
    assert call(up, "GET", "/leases/dive")[0] == 404


async def _until(condition: Any) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.005)
