"""Peers are named as people type them: one spelling is stored, whatever the system wrote."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from unicodedata import normalize

import pytest

import holdfast
from holdfast.node.library.node import Node
from holdfast.node.links.registry import Links
from holdfast.node.settings import BusSettings
from holdfast.node.trust.trust import Trust
from holdfast.rules.errors import AlreadyExists, BadInput, BadPeerId, UnknownZone
from holdfast.rules.filters import Filter
from holdfast.rules.keys import card_of, public_key
from holdfast.rules.member_names import meant_key
from holdfast.rules.names import check_peer, named_peer
from holdfast.storage.files.home import HomePaths
from support import envelopes as e
from support.envelopes import MESH
from support.nodes import Nodes, team

NFC = normalize("NFC", "Zoë")
NFD = normalize("NFD", NFC)
KEY = public_key(b"z" * 32)


def test_U1_a_home_that_is_made_under_any_spelling_has_one(tmp_path: Path) -> None:
    assert NFD != NFC
    with holdfast.open(tmp_path / "z", peer=NFD, create=True, sync="normal") as node:
        assert node.peer == NFC
    with holdfast.open(tmp_path / "z", peer=NFD, sync="normal") as node:
        assert node.peer == NFC
    with pytest.raises(AlreadyExists):
        holdfast.open(tmp_path / "z", peer="zoe", sync="normal")


def theirs(node: Node) -> None:
    node.apply(
        [
            e.memory_set("k", 1, lamport=1, origin=NFC),
            e.file_share("f.txt", b"content", lamport=2, origin=NFC),
        ]
    )


READS: dict[str, Callable[[Node, str], object]] = {
    "memory.get": lambda node, peer: getattr(team(node).memory.get("k", peer=peer), "value", None),
    "memory.recall": lambda node, peer: [
        one.value for one in team(node).memory.recall("k", scope=f"peer:{peer}")
    ],
    "files.read": lambda node, peer: team(node).files.read("f.txt", peer=peer),
    "files.info": lambda node, peer: team(node).files.info("f.txt", peer=peer).size,
    "files.last_known": lambda node, peer: team(node).files.last_known("f.txt", peer=peer).content,
    "files.list": lambda node, peer: [one.path for one in team(node).files.list(peer=peer)],
    "presence.get": lambda node, peer: team(node).presence.get(peer).peer,
}


@pytest.mark.parametrize("verb", READS)
def test_U1_what_a_peer_has_is_found_by_any_spelling_of_its_name(nodes: Nodes, verb: str) -> None:
    node = nodes.open("ana")
    theirs(node)
    found = READS[verb](node, NFD)
    assert found
    assert found == READS[verb](node, NFC)


def test_U1_zones_links_readers_and_settings_take_any_spelling(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "ana", peer="ana", create=True, sync="normal") as node:
        node.create_mesh(MESH)
        _zones_links_and_readers(node)
    assert [*BusSettings(peers=[f"{NFD}@10.0.0.1:7412"]).static_peers] == [NFC]
    assert meant_key(NFD, [(NFC, KEY)]) == KEY


def _zones_links_and_readers(node: Node) -> None:
    trust = Trust(node._engine, HomePaths(node.home))
    trust.trust(card_of(NFC, KEY))
    assert trust.zone(NFD).name == NFC
    links = Links(node._engine, trust)
    view = links.add("up", "https://zoe:1", NFD, meshes=[MESH], carries=[NFD, "bob"])
    assert (view.zone, sorted(view.carries)) == (NFC, ["bob", "own"])
    reader = node.log.add_consumer("r", filter=Filter(origins=(NFD,)))
    assert reader.filter.origins == (NFC,)
    assert trust.block(NFD).blocked_at is not None
    with pytest.raises(UnknownZone):
        trust.zone("zoe")


@pytest.mark.parametrize("name", ["", " x", "a\x07b", "x" * 129, normalize("NFD", "é" * 65)])
def test_U1_what_is_no_name_in_any_spelling_is_refused(name: str) -> None:
    with pytest.raises(BadInput):
        named_peer(name)


def test_Z8_what_another_node_sends_in_another_spelling_is_refused_as_before(nodes: Nodes) -> None:
    with pytest.raises(BadPeerId, match="not NFC-normalised"):
        check_peer(NFD)
    node = nodes.open("ana")
    (applied,) = node.apply([e.changed(e.state_set("k", 1, lamport=1), origin=NFD)])
    assert applied.error is not None
