"""The node that a server for agents finds, while daemons come and go."""

from __future__ import annotations

from pathlib import Path

import pytest

import holdfast
from holdfast.apps.mcp.reach import OwnReach
from holdfast.apps.mcp.tools.call import AgentCall
from holdfast.node.core.change import Receipt
from holdfast.node.library.node import Node
from holdfast.node.remote.node import RemoteNode
from holdfast.rules.errors import StoreClosed, UnknownKey, Unreachable
from holdfast.rules.ids import id_text
from holdfast.storage.files.home import HomePaths
from support.daemon import make_home, running
from support.envelopes import make_id


def test_U3_a_write_whose_answer_was_lost_is_made_again_with_the_same_id(tmp_path: Path) -> None:
    home = make_home(tmp_path / "home")
    reach = OwnReach(HomePaths(home))
    call = AgentCall(id_text(make_id(1)))
    done: list[Receipt] = []

    def write(node: Node) -> Receipt:
        mesh = call.on(node).mesh(None)
        done.append(mesh.state.set("k", 1, id=call.id(None, mesh)))
        if len(done) == 1:
            raise Unreachable("the daemon went before its answer came")
        return done[-1]

    with running(home):
        assert reach.run(write).duplicate
    reach.close()
    assert [one.duplicate for one in done] == [False, True]


def test_U3_a_daemon_is_asked_while_there_is_one_and_the_home_is_opened_else(
    tmp_path: Path,
) -> None:
    home = make_home(tmp_path / "home")
    reach = OwnReach(HomePaths(home))

    def kind(node: Node) -> bool:
        return isinstance(node, RemoteNode)

    assert reach.run(kind) is False
    with running(home):
        assert reach.run(kind) is True
        with pytest.raises(UnknownKey):  # an error of the work itself is no reason to ask again
            reach.run(lambda node: node.mesh("team").state.delete("no"))
    assert reach.run(lambda node: node.mesh("team").state.set("k", 1)).lamport == 1
    assert reach.run(kind) is False
    reach.close()
    with pytest.raises(StoreClosed):
        reach.run(kind)
    with holdfast.open(home) as node:
        assert node.mesh("team").state.get("k") == 1
