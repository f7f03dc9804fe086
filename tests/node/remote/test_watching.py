"""Watches: the same on an open home and over a connection, whatever happens to the connection."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from queue import Queue
from typing import Any, NamedTuple

import pytest

import holdfast
from holdfast.node.core.intake import Intake
from holdfast.node.library.aio import AsyncNode
from holdfast.node.remote.aio import AsyncRemoteNode
from holdfast.node.remote.node import RemoteNode
from holdfast.node.remote.watching import RemoteSource
from holdfast.node.settings import Settings
from holdfast.node.watching.changes import LogChange
from holdfast.node.watching.watches import ChangeWatch
from holdfast.protocol.event_stream import read_events
from holdfast.rules import limits
from holdfast.rules.errors import (
    BadAnswer,
    BadInput,
    BadKey,
    EpochChanged,
    HoldfastError,
    NotGranted,
    PastEnd,
    ProcessForked,
    StoreClosed,
    TooMany,
    Truncated,
    Unreachable,
)
from holdfast.rules.order import Stamp
from holdfast.transport.fault_proxy import FaultProxy
from node.remote.conftest import Seen
from support import envelopes as e
from support.daemon import PATIENCE_S, UpInThread, make_home, process, running
from support.envelopes import MODEL

_made = iter(range(2_000_000, 3_000_000))


def taken(watch: ChangeWatch[Any], count: int) -> list[Any]:
    """The next of a watch. A watch that yields nothing fails the test, and does not hang it."""
    got: Queue[Any] = Queue()

    def run() -> None:
        try:
            for found in islice(watch, count):
                got.put(found)
            got.put(StopIteration)
        except HoldfastError as error:
            got.put(error)

    threading.Thread(target=run, daemon=True).start()
    found: list[Any] = []
    while len(found) < count:
        one = got.get(timeout=PATIENCE_S)
        if isinstance(one, HoldfastError):
            raise one
        if one is StopIteration:
            break
        found.append(one)
    return found


def keys(watch: ChangeWatch[LogChange], count: int) -> list[str]:
    return [change.key for change in taken(watch, count)]


# --- the same on both ----------------------------------------------------------------------------


def test_U1_a_change_is_the_same_over_a_connection(mesh: holdfast.Mesh) -> None:
    with mesh.state.watch() as watch:
        receipt = mesh.state.set("k", {"a": [None, "é"]}, meta={"why": "so"})
        mesh.state.delete("k")
        first, second = taken(watch, 2)
        assert watch.cursor == second.cursor
        assert not watch.has_more
    assert (first.op, first.mesh, first.key) == ("state.set", mesh.slug, "k")
    assert (first.value, first.meta) == ({"a": [None, "é"]}, {"why": "so"})
    assert (first.id, first.offset, first.stamp) == (receipt.id, receipt.offset, Stamp(1, "ana"))
    assert (first.peer, first.owner, first.deleted) == ("ana", "", False)
    assert first.created_at == first.recorded_at
    assert first.entry.raw[:1] == b"\xdc"
    assert (second.deleted, second.value) == (True, None)
    assert repr(second).startswith(f"LogChange({second.cursor} state.delete {mesh.slug}/k")


def test_U1_every_family_is_watched_alike(mesh: holdfast.Mesh, seen: Seen) -> None:
    mesh.state.set("a/1", 1)
    mesh.state.set("b/1", 1)
    mesh.memory.set("a/1", 1)
    theirs = {"lamport": 90, "origin": "bo", "mesh": mesh.slug}
    seen.inside.apply([e.memory_set("a/2", 2, id=e.make_id(next(_made)), **theirs)])
    mesh.vectors.store("a/1", [1, 2], model=MODEL)
    mesh.files.share("a/1", b"x")
    task = mesh.tasks.create("t").task
    mesh.tasks.claim(task)
    mesh.facts.append("a/1", "is", 1)
    mesh.audit.append("activityLog", 1)
    watches: list[tuple[ChangeWatch[LogChange], list[str]]] = [
        (mesh.state.watch("a/", since="start"), ["a/1"]),
        (mesh.state.watch(since="start"), ["a/1", "b/1"]),
        (mesh.memory.watch(since="start"), ["a/1", "a/2"]),
        (mesh.memory.watch(since="start", scope="self"), ["a/1"]),
        (mesh.memory.watch(since="start", scope="peer:bo"), ["a/2"]),
        (mesh.vectors.watch("a", since="start"), ["a/1"]),
        (mesh.files.watch(since="start"), ["a/1"]),
        (mesh.tasks.watch(task, since="start"), [task, task]),
        (mesh.facts.watch("a/", since="start"), ["a/1"]),
        (mesh.audit.watch(since="start"), ["activityLog"]),
    ]
    for watch, wanted in watches:
        with watch:
            assert [change.key for change in watch.present()] == wanted


def test_Z4_a_watch_goes_on_after_a_cursor_and_misses_and_repeats_nothing(
    mesh: holdfast.Mesh, node: holdfast.Node
) -> None:
    watch = mesh.state.watch()
    begun = watch.cursor
    found: list[str] = []
    for number in range(12):
        mesh.state.set(f"{number}", number)
        mesh.memory.set("other", number)
        if number % 4 == 3:
            found += keys(watch, 1 + number % 3)
            cursor = watch.cursor
            watch.close()
            watch = mesh.state.watch(since=cursor if number % 2 else str(cursor))
    found += keys(watch, 12 - len(found))
    assert found == [f"{number}" for number in range(12)]
    watch.close()
    assert list(watch) == []
    with mesh.state.watch(since=begun) as again:
        assert [change.key for change in again.present()] == found
        assert list(again.present()) == []
        assert again.cursor == node.log.head()[::2], "also what does not pass was looked through"
        mesh.state.set("late", 1)
        assert keys(again, 1) == ["late"]


def test_U1_the_log_is_watched_by_mesh_op_prefix_and_peer(
    mesh: holdfast.Mesh, node: holdfast.Node
) -> None:
    since = node.log.head().offset
    mesh.state.set("a", 1)
    mesh.state.delete("a")
    task = mesh.tasks.create("t").task

    def found(**terms: Any) -> list[int]:
        with node.log.watch(since=since, **terms) as watch:
            return [change.offset - since for change in watch.present()]

    assert found() == found(mesh=mesh.slug) == found(peer="ana") == [1, 2, 3]
    assert found(mesh="first") == found(peer="bo") == []
    assert found(ops=["state"]) == [1, 2]
    assert found(ops=["state.delete", "task"]) == [2, 3]
    assert found(prefix=task) == found(prefix=task, ops=["task.create"]) == [3]


def test_U1_a_watch_begins_at_a_time(mesh: holdfast.Mesh, node: holdfast.Node) -> None:
    mesh.state.set("a", 1)
    head = node.log.head()
    (entry,) = node.log.tail(1)
    assert node.log.place_at(entry.recorded_at + 60_000) == head[::2]
    with mesh.state.watch(since=node.log.place_at(entry.recorded_at)) as watch:
        assert [change.key for change in watch.present()] == ["a"]
    assert node.log.place_at(0) == (head.epoch, head.first - 1)
    with pytest.raises(BadInput):
        node.log.place_at(-1)


def test_U1_what_is_wrong_comes_with_the_call(mesh: holdfast.Mesh, node: holdfast.Node) -> None:
    anything: Any = 1
    odd: list[tuple[type[HoldfastError], Callable[[], Any]]] = [
        (BadInput, lambda: node.log.watch(ops=["state.sat"])),
        (BadInput, lambda: node.log.watch(ops=["none"])),
        (BadInput, lambda: node.log.watch(ops="state")),
        (BadInput, lambda: node.log.watch(mesh="No Mesh")),
        (BadInput, lambda: mesh.state.watch(anything)),
        (BadKey, lambda: mesh.state.watch("\0")),
        (BadInput, lambda: node.log.watch(peer="")),
        (BadInput, lambda: mesh.memory.watch(scope="ours")),
        (BadInput, lambda: mesh.state.watch(since="never")),
        (BadInput, lambda: mesh.state.watch(since=1.5)),  # type: ignore[arg-type]
        (PastEnd, lambda: mesh.state.watch(since=10**9)),
        (EpochChanged, lambda: mesh.state.watch(since="9:0")),
        (BadInput, lambda: node.inbox.watch(since="1:2")),
        (PastEnd, lambda: node.inbox.watch(since=10**9)),
    ]
    for error, wrong in odd:
        with pytest.raises(error):
            wrong()


def test_D13_messages_are_watched_as_they_arrive(mesh: holdfast.Mesh, seen: Seen) -> None:
    place = {"mesh": mesh.slug}
    news = [
        e.message_send("topic", f"n{n % 2}", b"%d" % n, lamport=3 + n, id=_id(), **place)
        for n in range(6)
    ]
    store = seen.inside._opened.store

    def bring(*raws: bytes) -> None:
        delivered = {raw: b"B" * 16 for raw in raws}
        store.write(Intake(seen.inside._engine.ctx, raws, delivered=delivered))

    seen.inside.apply([news[2]])  # as history first: the log does not grow when it arrives
    with mesh.inbox.watch() as watch:
        bring(*news[:2])
        assert [one.preview for one in taken(watch, 2)] == ["0", "1"]
        bring(news[2])
        (third,) = taken(watch, 1)
        assert (third.preview, third.ref, third.read_at) == ("2", "n0", None)
    bring(*news[3:])
    with seen.node.inbox.watch(since=watch.cursor) as again:
        assert [one.preview for one in again.present()] == ["3", "4", "5"]
        assert again.cursor == max(one.number for one in mesh.inbox.list())
    with mesh.inbox.watch(topic="n1", sender="bob", since="start") as narrow:
        assert [one.preview for one in narrow.present()] == ["1", "3", "5"]


def _id() -> bytes:
    return e.make_id(next(_made))


def test_U1_closing_ends_a_watch_that_waits_in_another_thread(mesh: holdfast.Mesh) -> None:
    watch = mesh.state.watch()
    ended = threading.Event()

    def wait() -> None:
        assert list(watch) == []
        ended.set()

    waiting = threading.Thread(target=wait, daemon=True)
    waiting.start()
    watch.close()
    assert ended.wait(PATIENCE_S)
    waiting.join(PATIENCE_S)
    watch.close()


def test_U1_coroutines_watch_as_many_as_they_like(mesh: holdfast.Mesh, seen: Seen) -> None:
    """More than there are threads for other verbs."""

    async def story() -> None:
        kind = AsyncRemoteNode if isinstance(seen.node, RemoteNode) else AsyncNode
        node = kind(seen.node)  # type: ignore[arg-type]
        team = await node.mesh(mesh.slug)
        watches = [team.state.watch() for _ in range(24)]
        reads = [asyncio.create_task(anext(one)) for one in watches]
        await asyncio.sleep(0)
        await team.state.set("k", 1)
        async with asyncio.timeout(PATIENCE_S):
            assert {change.key for change in await asyncio.gather(*reads)} == {"k"}
        late = asyncio.create_task(anext(watches[0]))
        await asyncio.sleep(0.01)
        late.cancel()
        with pytest.raises(asyncio.CancelledError):
            await late
        await team.state.set("l", 1)
        async with team.state.watch(since=watches[0].cursor) as again:
            async for change in again:
                assert change.key == "l"
                break
        for one in watches:
            await one.close()

    asyncio.run(story())


def test_S1_a_forked_child_takes_nothing_from_its_parents_watch(mesh: holdfast.Mesh) -> None:
    with mesh.state.watch() as watch:
        pid = os.fork()
        if not pid:
            try:
                signal.alarm(PATIENCE_S)
                _refused(watch)
            finally:
                os._exit(1)
        assert os.waitpid(pid, 0)[1] == 0
        mesh.state.set("a", 1)
        assert keys(watch, 1) == ["a"]


def _refused(watch: ChangeWatch[LogChange]) -> None:
    try:
        next(watch)
    except ProcessForked:
        watch.close()
        os._exit(0)


# --- broken connections --------------------------------------------------------------------------


class Through(NamedTuple):
    """A daemon, and a connection to it through a proxy that breaks things."""

    up: UpInThread
    proxy: FaultProxy
    node: RemoteNode

    @property
    def team(self) -> holdfast.Mesh:
        return self.node.mesh("team")

    @property
    def inside(self) -> holdfast.Mesh:
        """Writes without the proxy."""
        return self.up.daemon.api.node.mesh("team")


@contextmanager
def through(home: Path) -> Iterator[Through]:
    with running(home, Settings(tcp="127.0.0.1:0")) as up:
        token = up.daemon.api.trust.add_token("own")
        host, _, port = up.tcp.removeprefix("http://").rpartition(":")
        with FaultProxy((host, int(port))) as proxy:
            address = "http://{}:{}".format(*proxy.address)
            with holdfast.connect(address, token=token) as node:
                assert isinstance(node, RemoteNode)
                yield Through(up, proxy, node)


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Through]:
    with through(make_home(tmp_path_factory.mktemp("broken") / "home")) as there:
        yield there


def test_U1_closing_the_connection_ends_its_watches(broken: Through) -> None:
    ended: Queue[Any] = Queue()
    node = holdfast.connect(broken.up.unix)
    watches: list[ChangeWatch[Any]] = [
        node.log.watch(),
        node.mesh("team").state.watch(),
        node.inbox.watch(),
    ]
    for watch in watches[:2]:
        threading.Thread(target=lambda one=watch: ended.put(list(one)), daemon=True).start()
    node.close()
    assert [ended.get(timeout=PATIENCE_S) for _ in range(2)] == [[], []]
    assert list(watches[2]) == []

    async def story() -> None:
        async with holdfast.aconnect(broken.up.unix) as twin:
            mesh = await twin.mesh("team")
            waiting = asyncio.create_task(anext(mesh.state.watch(), None))
            await asyncio.sleep(0.01)
        assert await asyncio.wait_for(waiting, PATIENCE_S) is None

    asyncio.run(story())


def test_Z4_a_connection_that_is_cut_again_and_again_loses_and_repeats_nothing(
    broken: Through,
) -> None:
    with broken.team.state.watch("cut/") as watch:
        found: list[str] = []
        for number in range(40):
            broken.inside.state.set(f"cut/{number}", "x" * 500)
            if number % 5 == 0:
                broken.proxy.cut_after(700 * (number % 4))
            if number % 3 == 0:
                found += keys(watch, 1)
            if number % 10 == 7:
                broken.proxy.cut()
        broken.proxy.heal()
        found += keys(watch, 40 - len(found))
    assert found == [f"cut/{number}" for number in range(40)]


def test_Z4_a_line_that_says_nothing_is_given_up(
    broken: Through, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one whose other end has gone without a word."""
    monkeypatch.setattr(limits, "WATCH_SILENCE_MS_MAX", 200)
    with broken.team.state.watch() as watch:
        broken.inside.state.set("silent", 1)
        assert keys(watch, 1) == ["silent"]
        broken.proxy.stall()
        broken.inside.state.set("unheard", 1)
        connections = broken.proxy.traffic().connections
        heal = threading.Timer(0.5, broken.proxy.heal)
        heal.start()
        assert keys(watch, 1) == ["unheard"]
        heal.join(PATIENCE_S)
        assert broken.proxy.traffic().connections > connections


def test_D10_a_reader_that_stops_reading_is_cut_off_and_goes_on(
    broken: Through, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "REQUEST_MS_MAX", 100)
    gate = broken.up.daemon.api.gate
    with broken.team.state.watch("large/") as watch:
        most = 40  # more than the buffers on the way hold
        broken.proxy.stall()
        for number in range(most):
            broken.inside.state.set(f"large/{number}", f"{number}" + "x" * 400_000)
        _until(lambda: gate.now["stream"] == 0)
        monkeypatch.undo()
        broken.proxy.heal()
        found = []
        for change in taken(watch, most):
            found.append(change.key)
            source = watch._source
            assert isinstance(source, RemoteSource)
            assert len(source._ready) <= 2
        assert found == [f"large/{number}" for number in range(most)]


def test_D10_a_refusal_for_too_many_streams_is_final_only_at_the_beginning(
    broken: Through,
) -> None:
    gate = broken.up.daemon.api.gate
    with broken.team.state.watch() as watch:
        before, gate.most["stream"] = gate.most["stream"], 0
        try:
            with pytest.raises(TooMany):
                broken.team.state.watch()
            broken.inside.state.set("many", 1)
            broken.proxy.cut()
            back = threading.Timer(0.2, gate.most.__setitem__, ["stream", before])
            back.start()
            assert keys(watch, 1) == ["many"]
            back.join(PATIENCE_S)
        finally:
            gate.most["stream"] = before


def test_Z4_what_has_gone_from_the_log_is_said_and_a_quiet_watch_is_not_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "HEARTBEAT_MS", 20)
    with through(make_home(tmp_path / "home")) as there:
        quiet = there.team.memory.watch()
        for number in range(5):
            there.inside.state.set("k", number)
        reading = Queue[Any]()
        threading.Thread(target=lambda: reading.put(next(quiet)), daemon=True).start()
        source: Any = quiet._source
        _until(lambda: [one.place for one in source._ready] == [(1, 5)])
        engine = there.up.daemon.api.node._engine
        engine.write("truncate", lambda tx: tx.log_truncate(6, 100, 0))
        there.proxy.cut()
        there.inside.memory.set("m", 1)
        assert reading.get(timeout=PATIENCE_S).key == "m"
        with pytest.raises(Truncated) as gone:
            there.team.memory.watch(since="1:0")
        assert gone.value.first_available == 5
        quiet.close()


def test_Z8_a_watch_ends_when_its_token_is_taken_back(broken: Through) -> None:
    token = broken.up.daemon.api.trust.add_token("short", reads=["team"])
    with holdfast.connect(broken.up.tcp, token=token) as node:
        with pytest.raises(NotGranted):
            node.inbox.watch()
        with node.mesh("team").state.watch() as watch:
            broken.up.daemon.api.trust.revoke_token("short")

            def read() -> None:
                for number in range(9):  # one page may be on its way already
                    broken.inside.state.set("secret", number)
                    taken(watch, 1)

            with pytest.raises(HoldfastError, match="token"):
                read()
            assert list(watch) == []


def test_Z4_a_watch_outlives_a_daemon_that_is_killed(tmp_path: Path) -> None:
    home = make_home(tmp_path / "home")
    durable = {"HOLDFAST_STORE_SYNC": "full"}
    with process(home, env=durable) as up:
        node = holdfast.connect(home)
        team = node.mesh("team")
        watch = team.state.watch()
        team.state.set("before", 1)
        team.state.set("unread", 1)
        assert keys(watch, 1) == ["before"]
        up.kill()
    got: Queue[Any] = Queue()

    def read() -> None:
        for change in watch:
            got.put(change.key)

    threading.Thread(target=read, daemon=True).start()
    with process(home, env=durable):
        team.state.set("after", 1)
        assert [got.get(timeout=PATIENCE_S) for _ in range(2)] == ["unread", "after"]
    node.close()


def test_Z4_the_patience_with_a_daemon_that_is_away_has_an_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "WATCH_AWAY_MS_MAX", 150)
    monkeypatch.setattr(limits, "EVENT_RETRY_MS", 60)
    with running(make_home(tmp_path / "home")) as up:
        with holdfast.connect(up.unix) as node:
            watch = node.mesh("team").state.watch()
            node.mesh("team").state.set("k", 1)
            assert keys(watch, 1) == ["k"]
            up.stop()
            with pytest.raises(Unreachable, match="a watch waited") as away:
                taken(watch, 1)
            assert f"since={str(watch.cursor)!r}" in away.value.hint
        with pytest.raises(StoreClosed):
            node.mesh("team").state.watch()


def test_Z4_a_watch_does_not_go_on_in_the_log_of_another_home(tmp_path: Path) -> None:
    homes = [make_home(tmp_path / peer, peer) for peer in ("ana", "bo")]
    with through(homes[0]) as there, running(homes[1], Settings(tcp="127.0.0.1:0")) as other:
        token = other.daemon.api.trust.add_token("own")
        with there.team.state.watch() as watch:
            watch._source._client._headers = {"Authorization": f"Bearer {token}"}  # type: ignore[attr-defined]
            line = there.node._line
            line._token = token
            while line._idle:
                line._idle.pop().close()
            host, _, port = other.tcp.removeprefix("http://").rpartition(":")
            there.proxy.retarget((host, int(port)))
            there.proxy.cut()
            with pytest.raises(NotGranted, match="of 'bo' now"):
                taken(watch, 1)


def test_U1_an_event_that_no_node_sends_is_refused() -> None:
    assert [one.id for one in read_events([b"id: 1", b"\n", b"\nid:2\n\n: x\n\nid: 3\n"])] == [
        *("1", "2", "")
    ]
    lines = b"event: e\ndata: a\ndata: b\n\n"
    assert next(read_events([lines[:9], lines[9:]])) == ("", "e", b"a\nb")
    most = b"data: " + b"x" * (limits.EVENT_BYTES_MAX - 6)
    assert len(list(read_events([most, b"\n\n"]))) == 1
    with pytest.raises(BadAnswer, match="larger"):
        list(read_events([most, b"x"]))
    with pytest.raises(BadAnswer):
        list(read_events(["id: é\n\n".encode()]))


def _until(holds: Callable[[], Any]) -> None:
    step = threading.Event()
    for _ in range(PATIENCE_S * 100):
        if holds():
            return
        step.wait(0.01)
    raise AssertionError("it did not become so in time")
