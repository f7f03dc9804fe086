"""Three processes with a bus each, on a LAN of their own. Nobody is told an address."""

from __future__ import annotations

from itertools import permutations

from support.lan_peer import LanPeer
from support.netns import Networks, need_networks

NAMES = ["ana", "ben", "eva"]


def test_B6_three_peers_find_each_other_speak_through_a_cut_and_go_on_when_one_moves() -> None:
    need_networks()
    with Networks() as networks:
        lan = networks.bridge()
        machines = [networks.machine() for _ in NAMES]
        for number, machine in enumerate(machines, 1):
            lan.plug(machine, f"10.77.0.{number}/24")
        peers = {
            name: LanPeer.begin(machine, name, NAMES)
            for name, machine in zip(NAMES, machines, strict=True)
        }
        _speak(peers, "hello")

        # One is cut off. What is said meanwhile is kept, and arrives when it is back.
        lan.cut(machines[2])
        for sender, receiver in permutations(NAMES, 2):
            peers[sender].send(receiver, "through the cut")
        peers["ana"].until_got("ben", "through the cut")
        peers["ben"].until_got("ana", "through the cut")
        assert not any(text == "through the cut" for _, text in peers["eva"].got)
        lan.mend(machines[2])
        for sender, receiver in permutations(NAMES, 2):
            peers[receiver].until_got(sender, "through the cut")

        # One gets another address. Its links are found to be dead, and come up where it is now.
        machines[0].ask("delete_address", "eth0", "10.77.0.1/24")
        machines[0].ask("add_address", "eth0", "10.77.0.9/24")
        _speak(peers, "after the move")
        for name in ("ben", "eva"):
            assert peers[name].links()["ana"].startswith("10.77.0.9")
        for peer in peers.values():
            assert len(peer.got) == len(set(peer.got)), "something came twice"
            peer.end()


def _speak(peers: dict[str, LanPeer], text: str) -> None:
    for sender, receiver in permutations(NAMES, 2):
        peers[sender].send(receiver, text)
    for sender, receiver in permutations(NAMES, 2):
        peers[receiver].until_got(sender, text)
