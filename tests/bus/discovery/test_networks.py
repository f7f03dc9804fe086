"""The networks that tests are made on: they do what they say, and leave nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from select import POLLIN, poll

from support.netns import Namespace, Networks, need_networks
from support.tap_switch import TapSwitch
from support.waiting import until

NOBODY = 65534
DELAY_S = 0.05
SEND = """
import socket, sys, time
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
    print(time.monotonic())
    s.sendto(sys.argv[2].encode(), (sys.argv[1], 999))
"""
RECEIVE = """
import socket, time
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
    s.bind(("0.0.0.0", 999))
    print("up", flush=True)
    while (word := s.recv(99).decode()) != "end":
        print(word, flush=True)
    print(time.monotonic())
"""


def test_R2_a_switch_can_lose_and_cut_one_direction_and_delay() -> None:
    need_networks()
    with Networks() as networks, TapSwitch() as switch:
        ana, ben = networks.machine(), networks.machine()
        switch.plug(ana, "10.77.0.1/24")
        switch.plug(ben, "10.77.0.2/24")
        with _receiver(ben) as to_ben, _receiver(ana) as to_ana:
            there, back = switch.way(ana, ben), switch.way(ben, ana)
            for _ in range(2):  # the first frames ask for hardware addresses
                _send(ana, "10.77.0.2", "one")
                assert _line(to_ben) == "one"
                _send(ben, "10.77.0.1", "one")
                assert _line(to_ana) == "one"
            there.is_cut = True
            _send(ana, "10.77.0.2", "two")
            until(lambda: any(b"two" in frame for frame in there.dropped))
            _send(ben, "10.77.0.1", "two")
            assert _line(to_ana) == "two"
            assert not back.dropped
            there.is_cut, there.loss = False, 1.0
            _send(ana, "10.77.0.2", "three")
            until(lambda: any(b"three" in frame for frame in there.dropped))
            there.loss, there.delay_s = 0.0, DELAY_S
            sent_at = _send(ana, "10.77.0.2", "end")
            (came_at,) = to_ben.communicate(timeout=60)[0].split()
            assert float(came_at) - sent_at >= DELAY_S
            _send(ben, "10.77.0.1", "end")
            to_ana.communicate(timeout=60)


def test_R2_networks_can_be_made_by_an_ordinary_user() -> None:
    need_networks()
    uid = NOBODY if os.geteuid() == 0 else None
    with Networks(uid) as networks:
        lan, ana = networks.bridge(), networks.machine()
        lan.plug(ana, "10.77.0.1/24")
        with ana.popen(["/bin/cat", "/proc/net/dev"], stdout=subprocess.PIPE) as process:
            assert "eth0" in process.communicate(timeout=60)[0]


OWNER = """
import sys
from support.netns import Networks
with Networks() as networks:
    lan, ana = networks.bridge(), networks.machine()
    lan.plug(ana, "10.77.0.1/24")
    child = ana.popen(["/bin/sh", "-c", "echo up; read never"], stdout=-1, stdin=-1)
    child.stdout.readline()
    print(lan._namespace.pid, ana.pid, child.pid, flush=True)
    sys.stdin.read()
"""


def test_R2_nothing_is_left_of_a_network_whose_test_was_killed() -> None:
    need_networks()
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    with subprocess.Popen(
        [sys.executable, "-c", OWNER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    ) as owner:
        assert owner.stdout is not None
        pids = [int(word) for word in owner.stdout.readline().split()]
        assert len(pids) == 3
        handles = [os.pidfd_open(pid) for pid in pids]
        owner.send_signal(signal.SIGKILL)
        for handle in handles:
            assert _has_ended(handle)
            os.close(handle)


def _has_ended(handle: int) -> bool:
    poller = poll()
    poller.register(handle, POLLIN)
    return bool(poller.poll(60_000))


def _receiver(machine: Namespace) -> subprocess.Popen[str]:
    process = machine.popen([sys.executable, "-S", "-c", RECEIVE], stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    return process


def _line(receiver: subprocess.Popen[str]) -> str:
    assert receiver.stdout is not None
    return receiver.stdout.readline().strip()


def _send(machine: Namespace, to: str, word: str) -> float:
    """When it was sent."""
    argv = [sys.executable, "-S", "-c", SEND, to, word]
    with machine.popen(argv, stdout=subprocess.PIPE) as process:
        return float(process.communicate(timeout=60)[0])
