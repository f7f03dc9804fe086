"""Audit events, telemetry and a move between engines, cut short in the middle: by an exception of a
signal handler, by a fork, by whoever gives up waiting.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

from holdfast.node.library.node import Node, open_node
from holdfast.node.quorum.etcd.coordination import OrderTiming
from holdfast.rules.errors import AlreadyExists
from support.envelopes import MESH
from support.etcd_orders import new_scope
from support.interrupts import Other, PlaceInterrupter, kind_of, places
from support.moved_nodes import check_fences, decoded, etcd_address, row_of, title, write
from support.nodes import team
from support.voter_nodes import voter_nodes

pytestmark = pytest.mark.faults

PATIENCE_S = 100
SLOW = OrderTiming(beat_ms=600_000, lost_ms=6_000_000)
"""Nobody looks at the etcd by the clock: what has begun is seen because it has."""


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Node]:
    node = open_node(tmp_path / "home", peer="ana", create=True, sync="normal")
    node.create_mesh("team")
    yield node
    node.close()


def test_Q14_an_append_that_is_interrupted_anywhere_is_in_the_chain_or_not_at_all(
    home: Node,
) -> None:
    audit, events = team(home).audit, 2
    audit.append("activityLog", "the first takes steps that no later one takes")
    with closing(Other(home.home / "data.db")) as other:
        for n, place in enumerate(places(lambda: audit.append("activityLog", "again"))[::3]):
            cut = PlaceInterrupter(place, kind_of(n))
            error = cut.run(lambda: audit.append("activityLog", n))  # noqa: B023
            other.can_write()
            audit.append("activityLog", "the next")
            (chain,) = audit.verify()
            assert (chain.sound, chain.gapless) == (True, True), cut.where
            assert chain.events - events in (1, 2), cut.where
            assert error is not None or chain.events - events == 2, cut.where
            events = chain.events


def test_Q1_telemetry_that_is_interrupted_anywhere_is_set_or_as_it_was(home: Node) -> None:
    telemetry = team(home).telemetry
    telemetry.set("agent", "a", -1)
    with closing(Other(home.home / "data.db")) as other:
        for n, place in enumerate(places(lambda: telemetry.set("agent", "a", 0))[::3]):
            telemetry.set("agent", "a", "before")
            cut = PlaceInterrupter(place, kind_of(n))
            error = cut.run(lambda: telemetry.set("agent", "a", n))  # noqa: B023
            other.can_write()
            found = telemetry.get("agent", "a")
            assert found == n or (error is not None and found == "before"), cut.where


FORKS = """
import os, sys, threading, holdfast
from holdfast.errors import ProcessForked
node = holdfast.open(sys.argv[1], sync="normal")
mesh = node.mesh("team")
def refused(call):
    try:
        call()
    except ProcessForked:
        return
    os._exit(5)
done = threading.Event()
count = [0, 0, 0]
def append(at):
    while not done.is_set():
        mesh.audit.append(f"s{at}", count[at])
        mesh.telemetry.set("agent", f"a{at}", count[at])
        count[at] += 1
threads = [threading.Thread(target=append, args=(at,)) for at in range(3)]
for one in threads:
    one.start()
for _ in range(12):
    pid = os.fork()
    if pid == 0:
        refused(lambda: mesh.audit.append("s0", "by a child"))
        refused(lambda: mesh.telemetry.set("agent", "a0", "by a child"))
        refused(lambda: mesh.audit.verify())
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
done.set()
for one in threads:
    one.join()
print(*count)
"""


def test_Q14_a_fork_in_the_middle_of_appends_adds_and_loses_no_event(tmp_path: Path) -> None:
    with open_node(tmp_path / "home", peer="ana", create=True, sync="normal") as node:
        node.create_mesh("team")
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORKS, str(tmp_path / "home")],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    counts = [int(one) for one in ran.stdout.split()]
    with open_node(tmp_path / "home") as node:
        chains = {one.stream: one for one in team(node).audit.verify()}
        for at, count in enumerate(counts):
            chain = chains[f"s{at}"]
            assert (chain.events, chain.sound, chain.gapless) == (count, True, True)
            assert team(node).telemetry.get("agent", f"a{at}") == count - 1


@pytest.mark.parametrize("turns", [1, 4, 16, 64])
def test_Q8_a_move_whose_caller_gives_up_at_any_turn_has_one_order_and_can_be_said_again(
    tmp_path: Path, turns: int
) -> None:
    async def story() -> None:
        async with voter_nodes(tmp_path, "ana") as (ana,):
            ana.host.etcd_orders._timing = SLOW
            await ana.host.quorum.init(MESH, ())
            await write(ana, "m", "before")
            address = etcd_address(new_scope())
            moving = asyncio.ensure_future(ana.host.quorum.move(MESH, engine=address))
            for _ in range(turns):
                await asyncio.sleep(0)
            moving.cancel()
            await asyncio.gather(moving, return_exceptions=True)
            # Whether it had begun or not: a write finds the order that counts.
            assert (await write(ana, "m", "meanwhile")).outcome == "applied"
            with suppress(AlreadyExists):
                await ana.host.quorum.move(MESH, engine=address)
            assert (await write(ana, "m", "after")).outcome == "applied"
            assert (row_of(ana).engine, row_of(ana).incarnation) == ("etcd", 2)
            assert title(ana) == "after"
            check_fences(ana)
            assert len(decoded(ana)) == 4, "three writes and one move"

    async def bounded() -> None:
        async with asyncio.timeout(PATIENCE_S):
            await story()

    asyncio.run(bounded())
