"""Connections: finding the daemon, several threads, broken lines, forks, and the same verbs."""

from __future__ import annotations

import asyncio
import inspect
import os
import threading
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.node.library.node import Mesh, Node
from holdfast.node.remote.faces import asks, needs_home
from holdfast.node.remote.line import Line
from holdfast.node.remote.node import RemoteMesh, RemoteNode
from holdfast.node.remote.opening import connect_node
from holdfast.node.settings import Settings
from holdfast.rules.errors import (
    BadAnswer,
    BadInput,
    BadToken,
    NeedsHome,
    NoDaemon,
    NoHome,
    NotGranted,
    OutcomeUnknown,
    StoreClosed,
    Unreachable,
)
from holdfast.rules.limits import CONNECT_LINES_MAX
from holdfast.transport.fault_proxy import FaultProxy
from support.daemon import make_home, running

NOT_OVER_HTTP = {
    *("Node.apply", "Node.sweep", "Node.bus"),
}
"""Verbs that need the home itself."""


def faces() -> list[tuple[type, object]]:
    line = Line("unix:/nowhere")
    node, mesh = RemoteNode(line), RemoteMesh(line, "team")
    hung = [*vars(node).values(), *vars(mesh).values(), mesh.presence, node.sharing]
    return [(Node, node), (Mesh, mesh)] + [
        (type(one).__bases__[-1], one) for one in hung if type(one).__name__.startswith("Remote")
    ]


def test_U1_every_verb_asks_the_daemon_or_says_that_it_needs_the_home() -> None:
    """None is left that would look for the home in the process that has only a connection."""
    asked = [pair for pair in faces() if not isinstance(pair[1], Line)]
    assert len(asked) >= 13
    needing: set[str] = set()
    for face, remote in asked:
        for name, verb in vars(face).items():
            if name.startswith("_") or not (inspect.isfunction(verb) or isinstance(verb, property)):
                continue
            found = inspect.getattr_static(type(remote), name)
            if found is needs_home or getattr(found, "fget", None) is needs_home:
                needing.add(f"{face.__name__}.{name}")
            elif found is verb:
                source = inspect.getsource(inspect.unwrap(getattr(verb, "fget", None) or verb))
                assert "self._engine" not in source, f"{face.__name__}.{name} looks for the home"
            elif inspect.isfunction(found) and inspect.isfunction(verb):
                one, other = inspect.signature(found), inspect.signature(verb)
                assert one.parameters.keys() == other.parameters.keys(), name
    assert needing == NOT_OVER_HTTP


def test_U1_what_needs_the_home_says_so(tmp_path: Path) -> None:
    home = make_home(tmp_path / "home")
    with running(home), holdfast.connect(home) as node:
        mesh = node.mesh("team")
        for call in (
            lambda: node.sweep(),
            lambda: node.bus,
            lambda: node.sharing.publish("team", wait=lambda: 0),
        ):
            with pytest.raises(NeedsHome, match=r"home|connection"):
                call()
        assert isinstance(node, holdfast.Node)
        assert isinstance(mesh, holdfast.Mesh)
        assert node.home == home


def test_U1_a_daemon_is_found_by_its_home_its_socket_or_its_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = make_home(tmp_path / "home")
    with pytest.raises(NoDaemon):
        holdfast.connect(home)
    with pytest.raises(NoHome):
        holdfast.connect(tmp_path / "none")
    with running(home, Settings(tcp="127.0.0.1:0")) as up:
        own = up.daemon.api.trust.add_token("own")
        reads = up.daemon.api.trust.add_token("reads", reads=["team"])
        monkeypatch.setenv("HOLDFAST_HOME", str(home))
        for where, token in ((None, None), (str(home), None), (up.unix, None), (up.tcp, own)):
            with holdfast.connect(where, token=token) as node:
                assert node.peer == "ana"
        with pytest.raises(BadToken):
            holdfast.connect(up.tcp)
        with pytest.raises(BadToken):
            holdfast.connect(up.tcp, token="hf_wrong")
        with holdfast.connect(up.tcp, token=reads) as node:
            assert node.mesh("team").state.get("k") is None
            with pytest.raises(NotGranted):
                node.mesh("team").state.set("k", 1)
    with pytest.raises(Unreachable):
        holdfast.connect(up.tcp, token=own)
    with pytest.raises(BadInput):
        holdfast.connect("http://example.org:7", token="t")
    with pytest.raises(BadInput):
        connect_node(3)  # type: ignore[arg-type]


def test_U1_threads_have_a_connection_each_and_some_are_kept(tmp_path: Path) -> None:
    home = make_home(tmp_path / "home")
    with running(home), holdfast.connect(home) as node:
        team = node.mesh("team")
        threads, most = CONNECT_LINES_MAX + 4, 20
        together = threading.Barrier(threads)

        def write(number: int) -> None:
            together.wait()
            for n in range(most):
                team.state.set(f"{number}/{n}", number)
                assert team.state.get(f"{number}/{n}") == number

        running_ = [threading.Thread(target=write, args=(n,)) for n in range(threads)]
        for thread in running_:
            thread.start()
        for thread in running_:
            thread.join()
        assert len(list(team.state.list())) == threads * most
        assert isinstance(node, RemoteNode)
        assert 1 <= len(node._line._idle) <= CONNECT_LINES_MAX
    with pytest.raises(StoreClosed):
        team.state.get("k")


def test_D3_a_write_whose_answer_is_lost_can_be_asked_for_again(tmp_path: Path) -> None:
    """The error names the id under which it is written once, even if the caller gave none."""
    home = make_home(tmp_path / "home")
    with running(home, Settings(tcp="127.0.0.1:0")) as up:
        token = up.daemon.api.trust.add_token("own")
        host, _, port = up.tcp.removeprefix("http://").rpartition(":")
        with (
            FaultProxy((host, int(port))) as proxy,
            holdfast.connect("http://{}:{}".format(*proxy.address), token=token) as node,
        ):
            team = node.mesh("team")
            proxy.cut_each(1)
            with pytest.raises(OutcomeUnknown) as lost:
                team.state.set("k", 1)
            proxy.cut_each(None)
            id = lost.value.hint.partition("id='")[2].partition("'")[0]
            again = team.state.set("k", 1, id=id)
            assert (again.duplicate, again.id) == (True, id)
            proxy.cut_each(1)
            with pytest.raises((Unreachable, BadAnswer)):
                team.state.get("k")


def test_U1_a_forked_child_has_connections_of_its_own(tmp_path: Path) -> None:
    home = make_home(tmp_path / "home")
    with running(home), holdfast.connect(home) as node:
        team = node.mesh("team")
        team.state.set("k", "parent")
        child = os.fork()
        if child == 0:
            done = 1
            try:
                done = 0 if team.state.get("k") == "parent" else 2
            finally:
                os._exit(done)
        for _ in range(20):
            assert team.state.get("k") == "parent"
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_U1_coroutines_connect_with_the_same_verbs(tmp_path: Path) -> None:
    home = make_home(tmp_path / "home")

    async def story() -> None:
        async with holdfast.aconnect(home) as node:
            assert isinstance(node, holdfast.AsyncNode)
            team = await node.mesh("team")
            receipts = await asyncio.gather(*(team.state.set(f"k{n}", n) for n in range(30)))
            assert len({receipt.id for receipt in receipts}) == 30
            assert [row.value async for row in team.state.list("k1")] == [1, *range(10, 20)]
            task = await team.tasks.create("paint")
            assert (await team.tasks.claim(task.task)).claimed_by == "ana"
            await team.files.share("a", b"x" * 100_000)
            assert await team.files.read("a") == b"x" * 100_000
            async with team.batch() as batch:
                done = batch.state.set("batched", 1)
            assert await team.state.get("batched") == 1
            assert done.receipt.id == done.id
            await team.presence.set(status="here")
            assert (await team.presence.get()).status == "here"
            assert [row.slug for row in await node.meshes()] == ["team"]
            with pytest.raises(NeedsHome):
                await node.sweep()

    with running(home):
        asyncio.run(story())


def test_U1_a_class_says_which_one_it_stands_for() -> None:
    kind: Any = asks(type("Nothing", (RemoteMesh,), {}))
    assert kind._engine.fget is needs_home
