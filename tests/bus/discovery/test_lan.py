"""Three processes on a LAN of their own: they find each other, move, and come back."""

from __future__ import annotations

from support.discovery_node import DiscoveryNode
from support.netns import Networks, need_networks


def test_B6_three_processes_on_a_lan_find_each_other_move_and_come_back() -> None:
    need_networks()
    with Networks() as networks:
        lan, other = networks.bridge(), networks.bridge()
        machines = [networks.machine() for _ in range(3)]
        for number, machine in enumerate(machines, 1):
            lan.plug(machine, f"10.77.0.{number}/24")
        names = ("ana", "ben", "eva")
        nodes = [
            DiscoveryNode.begin(machine, name, 7000 + number)
            for number, (machine, name) in enumerate(zip(machines, names, strict=True), 1)
        ]
        ana, ben, eva = nodes
        for node in nodes:
            node.seek(*names)
        for number, name in enumerate(names, 1):
            for node in nodes:
                if node is not nodes[number - 1]:
                    node.until_found(name, f"10.77.0.{number}:{7000 + number}")

        # One changes its address: the others hear of it.
        machines[0].ask("delete_address", "eth0", "10.77.0.1/24")
        machines[0].ask("add_address", "eth0", "10.77.0.9/24")
        ben.until_found("ana", "10.77.0.9:7001")
        eva.until_found("ana", "10.77.0.9:7001")

        # A second network that comes later: those who have both hear of both addresses.
        other.plug(machines[0], "10.88.0.1/24", "eth1")
        other.plug(machines[1], "10.88.0.2/24", "eth1")
        ben.until_found("ana", "10.77.0.9:7001", "10.88.0.1:7001")
        ana.until_found("ben", "10.77.0.2:7002", "10.88.0.2:7002")

        # Killed, and back at another port: the name never went, and is heard as changed.
        eva.kill()
        eva = DiscoveryNode.begin(machines[2], "eva", 7033)
        eva.seek("ana")
        ana.until_found("eva", "10.77.0.3:7033")
        eva.until_found("ana", "10.77.0.9:7001")
        for node in (ana, ben, eva):
            node.end()


def test_B6_link_local_addresses_come_with_the_interface_they_were_heard_on() -> None:
    need_networks()
    with Networks() as networks:
        lan = networks.bridge()
        machines = [networks.machine() for _ in range(2)]
        for number, machine in enumerate(machines, 1):
            lan.plug(machine, f"fe80::{number}/64")
        ana = DiscoveryNode.begin(machines[0], "ana", 7001, "[::]:7001")
        ben = DiscoveryNode.begin(machines[1], "ben", 7002, "[::]:7002")
        ana.seek("ben")
        places = ana.until_found("ben")
        assert places
        assert all(place.startswith("[fe80::") and "%" in place for place in places)
        ana.end()
        ben.end()
