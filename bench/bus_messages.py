"""Messages of the peer bus, against what they are made of.

The receiver is this process, the sender another one; what is compared ran in the same minute. CPU
is compared, because the cores are shared: that of bare signatures, of a bare TLS echo, of the same
parcels without a signature on either side, and of `nats-py` (publisher, server and consumer). All
of it runs on the loop that a daemon has.
"""

from __future__ import annotations

import asyncio
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from time import process_time
from typing import Final
from unittest import mock

import uvloop
from nacl.signing import SigningKey

from bench import _nats
from bench._bus_sender import BODY
from bench._nats_client import nats_us
from holdfast.bus import parcel_intake
from holdfast.bus.bus import Bus
from holdfast.bus.links.tls_net import TlsNet
from holdfast.bus.memory_store import MemoryMeshStore
from holdfast.bus.options import BusOptions
from holdfast.bus.received import ReceivedRequest
from holdfast.bus.static_peers import StaticPeers
from holdfast.rules.bus.mesh_store import MeshStore
from holdfast.rules.keys import card_of, public_key
from holdfast.storage.sqlite.bus.mesh_store import SqliteMeshStore

MESSAGES: Final = 9_600
REQUESTS: Final = 1_000
SIGNATURES: Final = 1_000
ROUNDS: Final = 3
ANA, BEN = b"a" * 32, b"b" * 32


def run() -> Iterator[tuple[str, float, str]]:
    folder = Path(tempfile.mkdtemp(prefix="holdfast-bench-"))
    try:
        yield from uvloop.run(_received(folder))
        yield from uvloop.run(_asked())
    finally:
        shutil.rmtree(folder)


def us(work: Callable[[], object], times: int) -> float:
    """CPU of one call."""
    began = process_time()
    for _ in range(times):
        work()
    return (process_time() - began) / times * 1e6


def bare_us() -> tuple[float, float]:
    """One signature, one verification, of as much as an envelope signs."""
    key, text = SigningKey(bytes(32)), bytes(180)
    signed = key.sign(text).signature
    return us(lambda: key.sign(text), SIGNATURES), us(
        lambda: key.verify_key.verify(text, signed), SIGNATURES
    )


# --- messages ------------------------------------------------------------------------------------


async def _received(folder: Path) -> list[tuple[str, float, str]]:
    each: dict[str, list[float]] = {"memory": [], "SQLite": []}
    batch: dict[str, list[float]] = {"memory": [], "SQLite": []}
    rival: list[float] = []
    for number in range(ROUNDS):
        for kind in each:
            stores = [await _store(kind, folder / f"{kind}-{number}-{at}") for at in range(3)]
            before = bare_us()[1]
            alone, _ = await receive_us(stores[0], "each")
            each[kind].append((before + bare_us()[1]) / 2 / alone)
            signed, both = await receive_us(stores[1], "batch")
            with mock.patch.object(parcel_intake, "check_signature", return_value=None):
                unsigned, _ = await receive_us(stores[2], "unsigned")
            batch[kind].append(unsigned / signed)
            for store in stores:
                await store.close()
        if _nats.available():
            rival.append(await nats_us(folder / f"nats-{number}", MESSAGES) / both)
    return [
        *(
            (
                f"bus: 500 B signed each, received into {kind} / bare verify, CPU",
                median(found),
                ">= 0.6",
            )
            for kind, found in each.items()
        ),
        *(
            (f"bus: unsigned / a batch signed once, into {kind}, CPU", median(found), ">= 0.8")
            for kind, found in batch.items()
        ),
        *(
            (
                "bus: nats-py over TLS into a durable consumer / a batch into SQLite, CPU",
                found,
                ">= 1.5",
            )
            for found in ([median(rival)] if rival else [])
        ),
    ]


async def _store(kind: str, path: Path) -> MeshStore:
    return MemoryMeshStore() if kind == "memory" else await SqliteMeshStore.open(path)


async def receive_us(store: MeshStore, mode: str) -> tuple[float, float]:
    """CPU of the receiver for one message, from the first to the last, and that of both sides."""
    peers = StaticPeers([card_of("ana", public_key(ANA))])
    options = BusOptions(seed=BEN, name="ben", peers=peers, store=store)
    async with await Bus.bind_with(options) as bus, bus.subscribe() as messages:
        place = f"{bus.card}@{bus.addresses[0]}"
        sender = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "bench._bus_sender", place, ANA.hex(), str(MESSAGES), mode),
            stdout=asyncio.subprocess.PIPE,
        )
        await anext(messages)
        began = process_time()
        for _ in range(MESSAGES - 1):
            await anext(messages)
        spent = process_time() - began
        said, _ = await sender.communicate()
        if sender.returncode:
            raise RuntimeError("the sender has failed")
    received = spent / (MESSAGES - 1) * 1e6
    return received, received + float(said) / MESSAGES * 1e6


# --- requests ------------------------------------------------------------------------------------


async def _asked() -> list[tuple[str, float, str]]:
    ratios: list[float] = []
    for _ in range(ROUNDS):
        sign, verify = bare_us()
        ratios.append(await request_us() / (await echo_us() + 2 * sign + 2 * verify))
    what = "bus: a request / a TLS echo, two signatures and two verifications, CPU"
    return [(what, median(ratios), "<= 1.5")]


async def request_us() -> float:
    """CPU of both sides for a request and its reply, one at a time."""
    ben_knows = StaticPeers([card_of("ana", public_key(ANA))])
    async with await Bus.bind_with(BusOptions(seed=BEN, name="ben", peers=ben_knows)) as ben:

        @ben.serve("echo")
        async def echo(request: ReceivedRequest) -> bytes:
            return request.body

        ana_knows = StaticPeers([f"{ben.card}@{ben.addresses[0]}"])
        options = BusOptions(seed=ANA, name="ana", listen=(), peers=ana_knows)
        async with await Bus.bind_with(options) as ana:
            await ana.request("ben", "echo", BODY)
            began = process_time()
            for _ in range(REQUESTS):
                await ana.request("ben", "echo", BODY)
            return (process_time() - began) / REQUESTS * 1e6


class _Echo(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._transport.write(data)


class _Asker(_Echo):
    left = REQUESTS

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._came = 0
        self._transport.write(BODY)

    def data_received(self, data: bytes) -> None:
        self._came += len(data)
        if self._came < len(BODY):
            return
        self._came = 0
        self.left -= 1
        if self.left:
            self._transport.write(BODY)
        else:
            self.done.set_result(None)
            self._transport.close()


async def echo_us() -> float:
    """CPU of both sides for 500 bytes there and back over TLS, one at a time."""
    net = TlsNet()
    listening = await net.listen("127.0.0.1:0", _Echo)
    asker = _Asker()
    began = process_time()
    await net.dial(listening.address, lambda: asker)
    await asker.done
    spent = process_time() - began
    await listening.close()
    return spent / REQUESTS * 1e6
