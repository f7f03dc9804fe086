"""Several processes behind one port, which are one broker; all of them real."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from holdfast.broker.identity import Identity
from holdfast.broker.operator import Operator
from holdfast.broker.parent.supervisor import BrokerProcesses, process_command
from holdfast.broker.settings import BrokerSettings
from holdfast.rules.errors import BadInput, BadValue, Unreachable
from support.broker_people import PATIENCE_S, Person, Wire, ask, rows_of
from support.broker_processes import processes_up

pytestmark = pytest.mark.timeout(180)
POLL_S = 0.02


async def standing(up: BrokerProcesses) -> list[dict[str, int]]:
    document = (await ask(up, "GET", "/v1/status", unix=True)).json  # type: ignore[arg-type]
    found: list[dict[str, int]] = document["processes"]
    return found


async def at_rest(up: BrokerProcesses) -> None:
    """Until the parent knows that all connections so far have ended."""
    async with asyncio.timeout(PATIENCE_S):
        while any(child.load for child in up._children.values()):
            await asyncio.sleep(POLL_S)


async def begun_again(up: BrokerProcesses, number: int, was: int) -> None:
    """Until it serves again, as another process says."""
    async with asyncio.timeout(PATIENCE_S):
        while up.pids.get(number, was) == was:
            await asyncio.sleep(POLL_S)
        while number not in {one["process"] for one in await standing(up)}:
            await asyncio.sleep(POLL_S)


def test_D1_connections_are_shared_out_and_members_at_all_processes_are_one_mesh(
    tmp_path: Path,
) -> None:
    async def run() -> None:
        async with processes_up(tmp_path, 3) as up, AsyncExitStack() as stack:
            people = [Person(name) for name in ("ana", "bob", "eve")]
            ana, *others = people
            await ana.register(up, "team")
            await ana.invite(up, "team", *others)
            await at_rest(up)
            wires: list[Wire] = []
            for person in people * 2:
                wire = await stack.enter_async_context(person.connect(up))
                await wire.follow("team")
                wires.append(wire)
            assert [one["connections"] for one in await standing(up)] == [2, 2, 2]
            for seq, person in enumerate(people, 1):
                raw = person.change("team", "k", seq)
                line = wires[seq - 1]
                assert (await line.push("team", raw))[0].seq == seq
                for at, wire in enumerate(wires):
                    if people[at % 3] is not person:
                        assert rows_of(await wire.entries("team", seq))[-1:] == [raw]

    asyncio.run(run())


def test_D1_a_session_of_one_process_is_good_at_every_other(tmp_path: Path) -> None:
    async def run() -> None:
        async with processes_up(tmp_path, 3) as up:
            ana = Person("ana")
            sessions = [await ana.new_session(up) for _ in range(3)]
            for session in sessions:
                for _ in range(4):
                    found = await ask(up, "GET", "/api/my/meshes", session=session)
                    assert found.status == 200, found.body
            answered = await ask(up, "GET", "/api/my/meshes", session=f"{sessions[0]}A")
            assert answered.status == 401

    asyncio.run(run())


def test_D16_a_scrape_and_the_status_show_the_whole_broker_and_each_process(
    tmp_path: Path,
) -> None:
    async def run() -> None:
        async with processes_up(tmp_path, 3) as up, AsyncExitStack() as stack:
            ana = Person("ana")
            await ana.register(up, "team")
            await at_rest(up)
            wires = [await stack.enter_async_context(ana.connect(up)) for _ in range(3)]
            for n, wire in enumerate(wires):
                await wire.push("team", *(ana.change("team", f"{n}.{m}", 1) for m in range(5)))
            status = (await ask(up, "GET", "/v1/status", unix=True)).json
            assert (status["pid"], status["connections"]) == (os.getpid(), 3)
            assert {one["process"]: one["pid"] for one in status["processes"]} == up.pids
            text = (await ask(up, "GET", "/metrics", unix=True)).body.decode()
            families = {one.name: one for one in text_string_to_metric_families(text)}
            accepted = families["holdfast_broker_accepted"].samples
            assert {(one.labels["process"], one.value) for one in accepted} == {
                (number, 5.0) for number in "123"
            }
            alive = families["holdfast_broker_process_up"].samples
            assert [one.value for one in alive] == [1.0] * 3
            (seq,) = families["holdfast_broker_mesh_seq"].samples
            assert (seq.labels, seq.value) == ({"mesh": "team"}, 15.0)

    asyncio.run(run())


def test_D2_a_process_that_is_killed_is_begun_again_and_the_others_do_not_notice(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        async with processes_up(tmp_path, 2) as up, AsyncExitStack() as stack:
            ana = Person("ana")
            await ana.register(up, "team")
            await at_rest(up)
            wires = [await stack.enter_async_context(ana.connect(up)) for _ in range(2)]
            for n, wire in enumerate(wires, 1):
                assert (await wire.push("team", ana.change("team", "k", n)))[0].seq == n
            for number in (1, 2):
                was = up.pids[number]
                os.kill(was, signal.SIGKILL)
                await begun_again(up, number, was)
                async with ana.connect(up) as again:
                    answers = await again.push("team", ana.change("team", "k", number + 2))
                    assert answers[0].seq == number + 2
        assert "was ended by signal 9; it is begun again" in caplog.text

    asyncio.run(run())


def test_D2_a_process_whose_loop_does_not_turn_is_ended_and_begun_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.rules.limits.PROCESS_SILENT_MS_MAX", 3000)

    async def run() -> None:
        async with processes_up(tmp_path, 2) as up:
            was = up.pids[2]
            os.kill(was, signal.SIGSTOP)
            await begun_again(up, 2, was)

    asyncio.run(run())


def test_D1_who_calls_is_not_handed_to_a_process_that_has_gone_quiet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.rules.limits.PROCESS_QUIET_MS", 2000)

    async def run() -> None:
        async with processes_up(tmp_path, 2) as up, AsyncExitStack() as stack:
            ana = Person("ana")
            await ana.register(up, "team")
            await at_rest(up)
            wires = [await stack.enter_async_context(ana.connect(up)) for _ in range(4)]
            os.kill(up.pids[1], signal.SIGSTOP)
            try:
                async with asyncio.timeout(PATIENCE_S):
                    while not up._children[1].is_quiet:
                        await asyncio.sleep(POLL_S)
                    for _ in range(2):
                        wires.append(await stack.enter_async_context(ana.connect(up)))
                    # The operator's calls go to the first one, as long as it answers.
                    assert (await ask(up, "GET", "/v1/status", unix=True)).status == 200
            finally:
                os.kill(up.pids[1], signal.SIGCONT)

    asyncio.run(run())


def test_D1_a_process_that_was_stopped_is_not_left_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("holdfast.rules.limits.PROCESS_END_MS_MAX", 1000)

    async def run() -> None:
        async with processes_up(tmp_path, 2) as up:
            pids = list(up.pids.values())
            os.kill(pids[0], signal.SIGSTOP)
        for pid in pids:
            with pytest.raises(ProcessLookupError):
                os.kill(pid, 0)

    asyncio.run(run())
    assert "did not end: it is killed" in caplog.text


def test_D1_the_operator_reaches_the_broker_whichever_process_lives(tmp_path: Path) -> None:
    async def run() -> None:
        async with processes_up(tmp_path, 2) as up:
            settings = BrokerSettings(store=tmp_path / "broker")
            was = up.pids[1]
            os.kill(was, signal.SIGKILL)
            async with asyncio.timeout(PATIENCE_S):
                while up.pids.get(1) == was:
                    await asyncio.sleep(POLL_S)
            for _ in range(3):
                status = await asyncio.to_thread(Operator(settings).status)
                assert status["name"] == "hub"
            swept = await asyncio.to_thread(Operator(settings).sweep)
            assert swept["messages"] == 0

    asyncio.run(run())


def test_D1_all_that_was_handed_in_is_answered_before_the_processes_end(tmp_path: Path) -> None:
    async def run() -> None:
        async with processes_up(tmp_path, 2) as up:
            pids = list(up.pids.values())
            ana = Person("ana")
            await ana.register(up, "team")
            async with ana.connect(up) as wire:
                raws = [ana.change("team", f"k{n}", 1) for n in range(200)]
                pushing = asyncio.ensure_future(wire.push("team", *raws))
                await asyncio.sleep(0)
                up.stop()
                answers = Counter(one.status for one in await pushing)
                assert sum(answers.values()) == 200
        for pid in pids:
            with pytest.raises(ProcessLookupError):
                os.kill(pid, 0)

    asyncio.run(run())


def test_D1_a_process_that_does_not_start_is_told_and_leaves_nothing_behind(
    tmp_path: Path,
) -> None:
    async def run() -> None:
        from support.postgres import name_for, server

        dsn = await server().database(name_for(tmp_path))
        settings = BrokerSettings(
            store=tmp_path / "broker", dsn=dsn, processes=2, tcp="127.0.0.1:0"
        )
        parent = BrokerProcesses(
            settings,
            process_command("holdfast.there_is_none"),
            log_level="warning",
            log_format="text",
            on_overtime=lambda: None,
        )
        with pytest.raises(Unreachable, match="did not start: it ended with exit code 1"):
            await parent.run()
        for pid in parent.pids.values():
            with pytest.raises(ProcessLookupError):
                os.kill(pid, 0)

    asyncio.run(run())


def test_D1_a_database_that_is_not_there_is_told_by_the_parent(tmp_path: Path) -> None:
    Identity(tmp_path / "broker", "hub")
    settings = BrokerSettings(
        store=tmp_path / "broker", dsn="postgresql://x@127.0.0.1:1/x", processes=2
    )
    parent = BrokerProcesses(settings, process_command("no"), log_level="info", log_format="text")
    with pytest.raises(Unreachable):
        asyncio.run(parent.run())
    assert parent.pids == {}


def test_D1_several_processes_need_postgres_and_have_a_limit(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="one process serves a broker on SQLite"):
        BrokerSettings(store=tmp_path, processes=2).check()
    for wrong in (0, 65):
        with pytest.raises(BadValue):
            BrokerSettings(store=tmp_path, dsn="postgresql://x/x", processes=wrong).check()


def test_D15_tls_is_spoken_by_every_process_with_one_certificate(tmp_path: Path) -> None:
    async def run() -> None:
        async with processes_up(tmp_path, 2, listen="127.0.0.1:0") as up, AsyncExitStack() as stack:
            ana = Person("ana")
            await ana.register(up, "team")
            await at_rest(up)
            wires = [await stack.enter_async_context(ana.connect(up, "https://")) for _ in range(2)]
            assert len({wire.certificate for wire in wires}) == 1
            assert [one["connections"] for one in await standing(up)] == [1, 1]
            await up.reload()
            async with ana.connect(up, "https://") as later:
                assert later.certificate == wires[0].certificate
                answers = await later.push("team", ana.change("team", "k", 1))
                assert answers[0].seq == 1

    asyncio.run(run())
