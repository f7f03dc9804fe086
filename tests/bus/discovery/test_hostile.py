"""Somebody on the LAN lies by mDNS: it costs little, and no peer is lost by it."""

from __future__ import annotations

import sys
from pathlib import Path

from holdfast.rules.bus.links.discovery import instance_of
from support.discovery_node import DiscoveryNode, key_of
from support.netns import Namespace, Networks, need_networks
from support.seeds import seeds

MEMORY_KB_MAX = 48 * 1024
"""What all attacks together may cost. The cache of zeroconf has a bound of 10,000 records."""
BEN = "10.77.0.2:7002"
EVE = "10.77.0.66"


def test_B6_hostile_answers_cost_little_and_no_peer_is_lost_by_them() -> None:
    need_networks()
    with Networks() as networks:
        lan = networks.bridge()
        machines = [networks.machine() for _ in range(3)]
        for machine, address in zip(machines, ("10.77.0.1", "10.77.0.2", EVE), strict=True):
            lan.plug(machine, f"{address}/24")
        ana = DiscoveryNode.begin(machines[0], "ana", 7001, "0.0.0.0:7001")
        ben = DiscoveryNode.begin(machines[1], "ben", 7002, "0.0.0.0:7002")
        eve, victim = machines[2], instance_of(key_of("ben"))
        ana.seek("ben")
        ana.until_found("ben", BEN)
        before = ana.status()

        _attack(eve, "names", "3000")
        _attack(eve, "foreign", "300")
        for seed in seeds(1):
            _attack(eve, "garbage", str(seed), "40")
        _attack(eve, "redirect", victim, EVE, "6666")
        ana.until_found("ben", f"{EVE}:6666")  # a candidate like any other; its hello will fail
        ana.forget()
        ana.look("ben")
        ana.until_found("ben", BEN)

        _attack(eve, "text", victim)
        _attack(eve, "goodbye", victim)
        ana.forget()
        ana.look("ben")
        ana.until_found("ben", BEN)

        after = ana.status()
        assert after["state"] == "on"
        assert after["strangers"] >= 1_000, "the attack was not heard"
        assert after["foreign"] > 0
        assert after["memory_kb"] - before["memory_kb"] < MEMORY_KB_MAX
        hosts = {place.rpartition(":")[0] for _, places in ana.told for place in places}
        assert hosts == {"10.77.0.2", EVE}, "nothing but machines around it is worth a dial"
        ana.end()
        ben.end()


def _attack(machine: Namespace, *words: str) -> None:
    argv = [sys.executable, "-m", "support.hostile_mdns", EVE, *words]
    with machine.popen(argv, cwd=Path(__file__).parents[2]) as process:
        assert process.wait(60) == 0
