"""The rival of the bench of messages: `nats-py` over TLS, into a stream with a durable consumer.

Run as a program it publishes so many messages, each acknowledged by the server, 64 at a time, and
prints how much CPU that took. `received` reads them by a pull consumer that acknowledges.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from time import process_time
from typing import Any

import uvloop

from bench import _nats
from bench._bus_sender import BODY, IN_FLIGHT
from holdfast.transport.tls import client_context, make_certificate

STREAM, CONSUMER = "bus", "ben"
_PAGE = 256


@asynccontextmanager
async def _client(port: int) -> AsyncIterator[Any]:
    import nats

    client = await nats.connect(
        f"tls://127.0.0.1:{port}", tls=client_context(), tls_hostname="localhost"
    )
    try:
        yield client
    finally:
        await client.close()


async def publish(port: int, count: int) -> None:
    async with _client(port) as client:
        stream = client.jetstream()

        async def some() -> None:
            for _ in range(count // IN_FLIGHT):
                await stream.publish(STREAM, BODY)

        began = process_time()
        await asyncio.gather(*(some() for _ in range(IN_FLIGHT)))
        print(process_time() - began, flush=True)


async def nats_us(folder: Path, count: int) -> float:
    """CPU of publisher, server and consumer for one message. The server syncs as it does by
    itself, every two minutes.
    """
    folder.mkdir()
    certificate, key = make_certificate(folder)
    port = _nats.free_port()
    config = f"""
listen: 127.0.0.1:{port}
jetstream {{ store_dir: "{folder / "store"}" }}
tls {{ cert_file: "{certificate}", key_file: "{key}" }}
"""
    with _nats.server(folder, "bus", config, port) as server:
        async with _client(port) as client:
            jetstream = client.jetstream()
            await jetstream.add_stream(name=STREAM, subjects=[STREAM])
            pulled = await jetstream.pull_subscribe(STREAM, durable=CONSUMER)
            began = process_time() + _spent(server)
            sender = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "bench._nats_client", str(port), str(count)),
                stdout=asyncio.subprocess.PIPE,
            )
            left = count
            while left:
                for message in await pulled.fetch(min(_PAGE, left), timeout=60):
                    await message.ack()
                    left -= 1
            said, _ = await sender.communicate()
            spent = process_time() + _spent(server) - began + float(said)
    return spent / count * 1e6


def _spent(pid: int) -> float:
    """CPU of a process that runs."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    _, at, messages = sys.argv
    uvloop.run(publish(int(at), int(messages)))
