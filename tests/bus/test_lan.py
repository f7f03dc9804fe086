"""Three daemons on machines of their own share a mesh with no broker, and nobody is told where the
others are.
"""

from __future__ import annotations

import sys
from pathlib import Path

import holdfast
from holdfast.rules.bus.links.discovery import instance_of
from holdfast.rules.keys import parse_card
from support.bus_homes import trust_of
from support.daemon import make_home
from support.hostile_mdns import RECORDS_PER_PACKET
from support.lan_daemon import MESH, LanDaemon
from support.netns import Namespace, Networks, need_networks
from support.tap_switch import TapSwitch
from support.waiting import until

NAMES = ("ana", "ben", "eva")
EVE = "10.77.0.66"
MEMORY_KB_MAX = 48 * 1024
"""What all attacks together may cost a daemon. The cache of zeroconf has a bound of 10,000
records, and names of strangers are counted, not kept."""
MESSAGE = {"body": "are you there?", "wait_ms": 0}


def _homes(folder: Path) -> tuple[dict[str, Path], str]:
    """Ana owns the mesh, and her invite names no address. Ana and Eva also trust each other."""
    homes = {name: make_home(folder / name, name, "own") for name in NAMES}
    with holdfast.open(homes["ana"]) as ana, holdfast.open(homes["eva"]) as eva:
        ana.create_mesh(MESH)
        ana.bus.sharing.share(MESH)
        invite = ana.bus.sharing.invite(MESH, uses=2).text
        trust_of(ana).trust(trust_of(eva).card())
        trust_of(eva).trust(trust_of(ana).card())
    return homes, invite


def test_B6_R2_three_daemons_find_each_other_and_converge_after_a_cut_a_move_and_a_kill(
    tmp_path: Path,
) -> None:
    need_networks(taps=True)
    homes, invite = _homes(tmp_path)
    with Networks() as networks, TapSwitch() as switch:
        machines = {name: networks.machine() for name in NAMES}
        for number, machine in enumerate(machines.values(), 1):
            switch.plug(machine, f"10.77.0.{number}/24")
        starting = {name: LanDaemon(machines[name], homes[name]) for name in NAMES}
        ana, ben, eva = (daemon.up() for daemon in starting.values())
        group = _Group(ana=ana, ben=ben, eva=eva)

        # They know each other by name only: mDNS brings them together.
        for newcomer in (ben, eva):
            assert newcomer.post("/v1/bus/join", {"invite": invite})["owner"] == "ana"
        group.write("at first")
        group.converge()

        # One is cut off, and everybody goes on.
        switch.cut(machines["eva"])
        group.write("in the cut")
        group.converge("ana", "ben")

        # One gets another address. Its link is found to be dead, and comes up where it is now.
        machines["ana"].ask("delete_address", "eth0", "10.77.0.1/24")
        machines["ana"].ask("add_address", "eth0", "10.77.0.9/24")
        group.write("after the move")
        group.converge("ana", "ben")
        assert ben.standing()["ana"]["address"].startswith("10.77.0.9")

        # One is killed. It comes back with all that it had, and gets what it missed.
        group.write("just before the end", "ben")
        ben.kill()
        ana.until_link("ben", up=False)
        group.write("without ben", "ana")
        group.daemons["ben"] = ben = LanDaemon(machines["ben"], homes["ben"]).up()
        group.converge("ana", "ben")

        # When the cable is mended, the one who was cut off finds where the others are now.
        eva.until_link("ana", up=False)
        eva.until_unlinked("ben")
        ana.until_link("eva", up=False)
        assert ana.post("/v1/bus/send", {"to": "eva", **MESSAGE})["state"] == "spooled"
        switch.cut(machines["eva"], False)
        group.converge()
        group.write("at last")
        group.converge()
        assert eva.messages(1) == [("ana", MESSAGE["body"])]
        assert eva.standing()["ana"]["address"].startswith("10.77.0.9")
        for daemon in group.daemons.values():
            exchanged = daemon.get("/v1/bus/status")["meshes"]
            assert all(one["problem"] == "" for one in exchanged["peers"]), exchanged
            assert all(one["trouble"] == "" for one in exchanged["streams"]), exchanged
            daemon.end()


def test_B6_R4_daemons_stay_small_and_linked_while_somebody_lies_by_mdns(tmp_path: Path) -> None:
    need_networks(taps=True)
    homes, invite = _homes(tmp_path)
    with Networks() as networks, TapSwitch() as switch:
        here, there, eve = (networks.machine() for _ in range(3))
        for machine, address in ((here, "10.77.0.1"), (there, "10.77.0.2"), (eve, EVE)):
            switch.plug(machine, f"{address}/24")
        starting = LanDaemon(here, homes["ana"]), LanDaemon(there, homes["ben"])
        ana, ben = (daemon.up() for daemon in starting)
        group = _Group(ana=ana, ben=ben)
        ben.post("/v1/bus/join", {"invite": invite})
        group.write("in peace")
        group.converge()
        ben.until_link("ana", up=True)
        ana.until_link("ben", up=True)
        # The link of the join ended, and the one of a member came.
        lost, before = ana.lost + ben.lost, (ana.memory_kb(), ben.memory_kb())

        victim = instance_of(parse_card(ben.card)[1])
        for words in (
            ("names", "3000"),
            ("foreign", "300"),
            ("garbage", "7", "40"),
            ("redirect", victim, EVE, "6666"),
            ("text", victim),
            ("goodbye", victim),
        ):
            _attack(eve, *words)
        until(lambda: switch.way(eve, here).carried > 3000 / RECORDS_PER_PACKET)
        group.write("in war")
        group.converge()
        assert ana.lost + ben.lost == lost, "nobody lost a link by it"
        for daemon, kb in zip((ana, ben), before, strict=True):
            assert daemon.get("/v1/bus/status")["discovery"] == "on"
            assert daemon.memory_kb() - kb < MEMORY_KB_MAX

        # Its name leads to somebody else, or nowhere. Who knows where it was finds it again.
        ben.kill()
        _attack(eve, "redirect", victim, EVE, "6666")
        group.daemons["ben"] = LanDaemon(there, homes["ben"]).up()
        group.write("in the end")
        group.converge()
        for daemon in group.daemons.values():
            daemon.end()


def _attack(machine: Namespace, *words: str) -> None:
    argv = [sys.executable, "-S", "-m", "support.hostile_mdns", EVE, *words]
    with machine.popen(argv, cwd=Path(__file__).parents[1]) as process:
        assert process.wait(60) == 0


class _Group:
    """Daemons that write and converge, and what each of them has written."""

    def __init__(self, **daemons: LanDaemon) -> None:
        self.daemons = daemons
        self._written: list[tuple[str, str]] = []

    def write(self, key: str, *names: str) -> None:
        for name in names or tuple(self.daemons):
            self.daemons[name].write(key, f"by {name}")
            self._written.append((key, name))

    def converge(self, *names: str) -> None:
        """These, or all, get what all of them wrote, and hold the same."""
        among = names or tuple(self.daemons)
        for name in among:
            for key, origin in self._written:
                if origin in among:
                    self.daemons[name].until_has(key, origin)
        first, *others = (self.daemons[name].digest() for name in among)
        assert all(other == first for other in others)
