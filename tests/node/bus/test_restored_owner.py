"""An owner whose home was put back from a backup: it learns from members what it signed itself."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import msgspec

from holdfast.rules.bus.meshes.member_list import trusted_list
from holdfast.storage.ports import Transaction
from support.bus_nodes import BusNode, told


def _go_back(node: BusNode, members: bytes) -> None:
    """The owner's list is what it was: all else of its home is as good as new."""

    def work(tx: Transaction) -> None:
        row = tx.bus_mesh_get("team")
        assert row is not None
        tx.bus_mesh_put(msgspec.structs.replace(row, members=members))

    node.engine.write("test", work)


def _raw(node: BusNode) -> bytes:
    held = node.peers.held_mesh("team")
    assert held is not None
    return held.row.members


def _has_all(node: BusNode) -> bool:
    return sorted(node.names()) == ["ana", "bob", "zoe"]


def test_B6_an_owner_that_went_back_in_time_drops_nobody(tmp_path: Path) -> None:
    async def story(nodes: list[BusNode]) -> None:
        ana, bob, zoe, eve = nodes
        invite = ana.invite(uses=5)
        await eve.join(invite)
        await eve.bus.close()
        backup = _raw(ana)
        await bob.join(invite)
        ana.sharing.remove_member("team", "eve")
        await ana.members.refresh()
        await bob.until(lambda: bob.names() == ["ana", "bob"])
        await ana.bus.close()
        await bob.bus.close()
        _go_back(ana, backup)
        await ana.bind()
        # Before it meets anybody, it lets somebody in: its list has the number of bob's, or more.
        at = tuple(ana.bus.addresses)
        await zoe.join(msgspec.structs.replace(invite, addresses=at))
        ana.sharing.grant("team", "zoe", ["read", "write", "relay"])
        await ana.members.refresh()
        assert "bob" not in ana.names()
        assert trusted_list(_raw(ana)).serial >= trusted_list(_raw(bob)).serial
        # Bob, whom it has forgotten, shows what it signed itself.
        await bob.bind()
        await bob.peers.note_addresses(ana.key, ana.bus.addresses)
        await bob.bus.refresh_peers()
        for node in (ana, bob, zoe):
            await node.until(partial(_has_all, node))
        assert trusted_list(_raw(ana)).is_barred(eve.key), "who was removed stays so"
        await bob.until(lambda: _raw(bob) == _raw(ana))
        # A list of before, told again, changes nothing.
        held = ana.peers.held_mesh("team")
        assert held is not None
        await ana.members._adopt(held, backup, bob.key)
        assert _raw(ana) == held.row.members

    told(tmp_path, story, "ana", "bob", "zoe", "eve")
