"""A process that takes messages in, keeps some for a peer and takes numbers, and prints each thing
when it is safe, until it is killed.

    python mesh_store_process.py FOLDER FIRST
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from holdfast.storage.sqlite.bus.mesh_store import SqliteMeshStore
from support.mesh_stores import ANA, signed_arrival, waiting_for


async def main(folder: Path, first: int) -> None:
    store = await SqliteMeshStore.open(folder / "bus.db")
    for number in range(first, first + 100_000, 3):
        batch = [signed_arrival(n) for n in range(number, number + 3)]
        verdicts = await store.accept(ANA, batch)
        print("arrived", number, verdicts.count(verdicts[0]), flush=True)
        await store.enqueue_outbox(waiting_for("ben", number))
        print("waits", number, 1, flush=True)
        given = await store.reserve(400)
        print("given", given[-1], 1, flush=True)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2])))
