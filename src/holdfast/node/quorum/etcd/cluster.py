"""Who the members of an etcd are, and how each of them is: what operators are shown.

Every member is asked by itself, so that one that is away, lags or has raised an alarm is seen even
where the others answer for it.
"""

from __future__ import annotations

import asyncio

import msgspec

from holdfast.protocol.etcd_json import (
    MEMBERS,
    STATUS,
    MemberAnswer,
    MembersAnswer,
    MembersRequest,
    StatusAnswer,
    StatusRequest,
)
from holdfast.rules.errors import HoldfastError
from holdfast.rules.limits import SECOND_MS
from holdfast.transport.etcd_gateway import EtcdGateway
from holdfast.transport.remote_errors import clean


class EtcdMemberStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One member, as it says itself."""

    address: str
    version: str = ""
    is_leader: bool = False
    has_leader: bool = False
    revision: int = 0
    store_bytes: int = 0
    problems: tuple[str, ...] = ()
    """What it complains about, or why it does not answer."""


async def member_statuses(gateway: EtcdGateway, *, timeout_ms: int) -> list[EtcdMemberStatus]:
    """All members that the address names, in its order."""
    until = asyncio.get_running_loop().time() + timeout_ms / SECOND_MS
    numbers = range(len(gateway.members))
    return list(await asyncio.gather(*(_status(gateway, number, until) for number in numbers)))


async def cluster_members(gateway: EtcdGateway, *, timeout_ms: int) -> tuple[MemberAnswer, ...]:
    """The members that the etcd itself knows, whether the address names them or not."""
    until = asyncio.get_running_loop().time() + timeout_ms / SECOND_MS
    request = MembersRequest(linearizable=True)
    return (await gateway.call(MEMBERS, request, MembersAnswer, until=until)).members


async def _status(gateway: EtcdGateway, number: int, until: float) -> EtcdMemberStatus:
    address = str(gateway.members[number])
    try:
        said = await gateway.call(STATUS, StatusRequest(), StatusAnswer, until=until, only=number)
    except HoldfastError as error:
        return EtcdMemberStatus(address=address, problems=(error.message,))
    return EtcdMemberStatus(
        address=address,
        version=clean(said.version),
        is_leader=said.leader != 0 and said.leader == said.header.member_id,
        has_leader=said.leader != 0,
        revision=said.header.revision,
        store_bytes=said.db_size,
        problems=tuple(clean(problem) for problem in said.errors),
    )
