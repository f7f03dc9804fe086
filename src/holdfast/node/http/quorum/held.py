"""The quorums that this daemon holds, and how a call reads what they have committed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

from holdfast.node.http.bus import bus_of
from holdfast.node.http.context import NodeRequest, waited
from holdfast.node.quorum.api import QuorumApi, ReadDemand
from holdfast.rules.errors import (
    BadInput,
    BusClosed,
    NoQuorum,
    NotFresh,
    NoVoters,
    OutcomeUnknown,
    RequestCancelled,
    TooStale,
    UnknownMesh,
    WrongKey,
)
from holdfast.rules.limits import QUORUM_WAIT_MS_MAX
from holdfast.rules.quorum.degraded_read import DegradedRead
from holdfast.service.http.route import Param
from holdfast.storage.ports import Reader

T = TypeVar("T")

ANY_CALL: Final = (BusClosed, NoVoters, RequestCancelled, UnknownMesh, WrongKey)
"""What each call about a quorum may raise."""
WRITES: Final = (*ANY_CALL, NoQuorum, OutcomeUnknown)
READS: Final = (*ANY_CALL, NotFresh, TooStale)
READ: Final = (
    Param(
        "read",
        "`linearizable` (the default): all that was committed before the call; `local`: what this "
        "node has.",
    ),
    Param("staleness_ms_max", "An answer that is older than this is refused.", int),
    Param("timeout_ms", "How long to wait for a confirmation.", int),
)
TIMEOUT: Final = Param("timeout_ms", "How long to wait.", int)


def quorum_of(call: NodeRequest) -> QuorumApi:
    """The quorums of this daemon, which holds them with its bus."""
    return bus_of(call).quorum


def mesh_of(call: NodeRequest) -> str:
    return call.path["mesh"]


def time_of(call: NodeRequest) -> int | None:
    """The time that the caller gives this call; None if it says nothing."""
    return check_time(call.number("timeout_ms"))


def check_time(timeout_ms: int | None) -> int | None:
    if timeout_ms is not None and not 0 <= timeout_ms <= QUORUM_WAIT_MS_MAX:
        raise BadInput(f"timeout_ms is {timeout_ms}", hint=f"give 0 to {QUORUM_WAIT_MS_MAX}")
    return timeout_ms


def demand_of(call: NodeRequest) -> ReadDemand:
    """How fresh the caller wants its answer."""
    bound, kind = call.number("staleness_ms_max"), call.one("read")
    kind = kind or ("linearizable" if bound is None else "local")
    if kind not in ("linearizable", "local"):
        raise BadInput(f"read is {kind!r}", hint="give linearizable or local")
    if kind == "linearizable" and bound is not None:
        raise BadInput(
            "a linearizable read is never stale", hint="give read or staleness_ms_max, not both"
        )
    return ReadDemand(linearizable=kind == "linearizable", staleness_ms_max=bound)


async def read_committed(
    call: NodeRequest, mesh: str, look: Callable[[Reader], T], name: str
) -> tuple[T, DegradedRead]:
    """What stands in this node's store, and how fresh that is: confirmed first, then read."""
    quorum, demand, time = quorum_of(call), demand_of(call), time_of(call)
    fresh = await waited(call, quorum.confirm(mesh, demand, timeout_ms=time))
    return await call.api.run(call.api.engine.read, name, look), fresh
