"""How a bus is bound: who it is, where it listens, and what it stands on."""

from __future__ import annotations

import asyncio
import os
import random as lots
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

import msgspec

from holdfast.bus.ports import Discovery, Net, PeerDirectory
from holdfast.rules.bus.mesh_store import MeshStore
from holdfast.rules.bus.message import BusMessage
from holdfast.rules.bus.succession import KeySuccession
from holdfast.service.clock import Clock, SystemClock

T = TypeVar("T")


class RunInThread(Protocol):
    """Runs something slow that needs no lock beside the loop, and returns what it returns."""

    def __call__(self, work: Callable[[], T], /) -> Awaitable[T]: ...


class BusOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Whatever is not given is what a bus without a home has."""

    seed: bytes | None = None
    """The secret part of the key, 32 bytes; None: a new one."""
    former: tuple[KeySuccession, ...] = ()
    """How this peer came to that key, if it had others before."""
    name: str = ""
    """What others call this peer if they have no name of their own for it."""
    listen: tuple[str, ...] = ("127.0.0.1:0",)
    """Where peers can reach this one: host:port, 0 for any free port. Empty: it only dials."""
    store: MeshStore | None = None
    """What it keeps durably; None: nothing, a `MemoryMeshStore`. It stays open when the bus is
    closed.
    """
    peers: PeerDirectory | None = None
    """Who is who; None: nobody is known."""
    net: Net | None = None
    """How bytes travel; None: TLS on TCP."""
    discovery: Discovery | None = None
    """Finds peers whose addresses are not known; None: only known addresses are tried."""
    drops: Callable[[str, BusMessage], bool] = lambda peer, message: False
    """Whether a message of a peer, by its name, is acknowledged and thrown away."""
    batch: bool = True
    """One signature for all messages of a parcel; False: one for each."""
    clock: Clock = msgspec.field(default_factory=SystemClock)
    random: Callable[[int], bytes] = os.urandom
    jitter: Callable[[], float] = lots.random
    run_in_thread: RunInThread = asyncio.to_thread
