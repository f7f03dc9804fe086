"""Two real nodes for the bench of zones: processes, homes on the disk, a TLS link between them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import holdfast
from holdfast.node.core import operations
from holdfast.node.library.node import Node
from holdfast.node.trust.trust import Trust
from holdfast.storage.ports import Transaction
from holdfast.transport.http_client import Client

MESH = "site"
BODY_BYTES = 440
"""A value of this size makes an envelope of about 600 bytes."""
CHUNK = 1000


class Up(NamedTuple):
    """A daemon in a process of its own."""

    pid: int
    unix: str
    tls: str


def make(home: Path, peer: str, facts: int = 0) -> None:
    """A home with so many facts, written by the library itself."""
    with holdfast.open(home, peer=peer, create=True, sync="normal") as node:
        node.create_mesh(MESH)
        append(node, facts)


def append(node: Node, facts: int) -> None:
    value = {"value": "x" * BODY_BYTES}

    def work(tx: Transaction) -> None:
        for number in range(CHUNK):
            subject = f"line{number % 40}/pump{number % 7}"
            operations.fact_append(node._engine.ctx, MESH, subject, "pressure", value)(tx)

    for _ in range(facts // CHUNK):
        node._engine.write("bench", work)


def befriend(reader: Path, source: Path) -> None:
    """The source lets the reader read, the reader knows the source."""
    with holdfast.open(reader) as one, holdfast.open(source) as other:
        hers, his = (Trust(node._engine, node._opened.paths) for node in (one, other))
        his.trust(hers.card(), reads=[MESH])
        hers.trust(his.card())


@contextmanager
def up(home: Path) -> Iterator[Up]:
    command = [sys.executable, "-m", "holdfast", "up", "--json", "--home", str(home)]
    process = subprocess.Popen(
        [*command, "--listen", "127.0.0.1:0"],
        env={**os.environ, "HOLDFAST_STORE_SYNC": "full"},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert process.stdout is not None
    try:
        said = json.loads(process.stdout.readline())
        addresses: list[str] = said["listening"]
        yield Up(
            said["pid"],
            next(one for one in addresses if one.startswith("unix:")),
            next(one for one in addresses if one.startswith("https:")),
        )
    finally:
        process.send_signal(signal.SIGTERM)
        process.stdout.close()
        process.wait()


def ask(client: Client, method: str, path: str, body: object = None) -> Any:
    raw = None if body is None else json.dumps(body).encode()
    headers: Mapping[str, str] = {} if raw is None else {"content-type": "application/json"}
    return json.loads(client.call(method, path, body=raw, headers=headers).body)


def cpu_s(pid: int) -> float:
    """What a process has used of the processor so far."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
