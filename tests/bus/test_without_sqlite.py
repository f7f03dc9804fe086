"""The bus in a process in which no SQLite can be imported, and one with a durable store beside it.

A blocked import stands for a machine without the package.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

from holdfast.bus.bus import Bus
from holdfast.bus.options import BusOptions
from holdfast.bus.static_peers import StaticPeers
from holdfast.rules.keys import card_of, public_key
from holdfast.storage.sqlite.bus.mesh_store import SqliteMeshStore

WITHOUT = """
import sys
for name in ("apsw", "apswutils", "sqlite3", "_sqlite3", "sqlite_vec"):
    sys.modules[name] = None  # importing it raises ImportError
import asyncio
from holdfast.bus.bus import Bus
from holdfast.bus.options import BusOptions
from holdfast.bus.static_peers import StaticPeers
from holdfast.rules.keys import card_of, public_key

ANA, BEN = b"a" * 32, b"b" * 32

async def story():
    ben = await Bus.bind_with(BusOptions(
        seed=BEN, name="ben", peers=StaticPeers([card_of("ana", public_key(ANA))])))
    place = f"{ben.card}@{ben.addresses[0]}"
    ana = await Bus.bind_with(BusOptions(seed=ANA, name="ana", peers=StaticPeers([place])))
    async with ben.subscribe() as messages:
        receipt = await ana.send("ben", b"hello", wait_ms=30_000)
        message = await anext(aiter(messages))
        print(receipt.state, message.body, message.sender)
    await ana.close()
    await ben.close()

asyncio.run(story())
assert not [name for name, module in sys.modules.items() if "apsw" in name and module]
"""


def test_B2_two_buses_talk_where_no_sqlite_can_be_imported(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT],
        cwd=tmp_path,
        env={**os.environ, "HOME": str(tmp_path), "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "delivered b'hello' ana\n"
    assert list(tmp_path.iterdir()) == [], "no file is created"


def test_B4_a_message_for_a_sleeping_peer_arrives_once_when_it_wakes(tmp_path: Path) -> None:
    """With a durable store on both sides, which both go down in between."""
    seeds = {"ana": b"a" * 32, "ben": b"b" * 32}

    async def up(name: str, other: str, place: str = "") -> tuple[Bus, SqliteMeshStore]:
        store = await SqliteMeshStore.open(tmp_path / f"{name}.db")
        card = card_of(other, public_key(seeds[other]))
        peers = StaticPeers([f"{card}@{place}" if place else card])
        options = BusOptions(seed=seeds[name], name=name, store=store, peers=peers)
        return await Bus.bind_with(options), store

    async def down(bus: Bus, store: SqliteMeshStore) -> None:
        await bus.close()
        await store.close()

    async def story() -> None:
        ana = await up("ana", "ben")
        receipt = await ana[0].send("ben", b"good morning", wait_ms=0)
        assert receipt.state == "spooled"
        await down(*ana)

        for turn in range(2):
            ben = await up("ben", "ana")
            ana = await up("ana", "ben", ben[0].addresses[0])
            async with ben[0].subscribe() as messages:
                found = aiter(messages)
                if turn == 0:
                    assert (await anext(found)).body == b"good morning"
                again = await ana[0].send("ben", b"turn %d" % turn, wait_ms=30_000)
                assert again.state == "delivered"
                assert (await anext(found)).body == b"turn %d" % turn, "nothing came twice"
            await down(*ana)
            await down(*ben)

    asyncio.run(story())
