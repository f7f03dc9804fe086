"""What a broker may add to the order of a mesh with voters. Both stores ask here.

Several members bring the same commits. A number is stored once: a page that is known changes
nothing, and one that says something else about a number is a fork and refused as a whole. The
broker does not decide what was committed; it sees to it that there is one order, without holes,
whose fences grow.

    held      state ≤ state_number    commits first … last
    page      known | known, new | new      gap: PastEnd     other: CommitForked
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from holdfast.protocol.commit_page import CheckedLine, CheckedPage
from holdfast.protocol.quorum_snapshot import SnapshotHeader
from holdfast.rules.broker_rows import BrokerOrder
from holdfast.rules.errors import CommitForked, HoldfastError, PastEnd
from holdfast.rules.quorum.fence import check_newer, parse_token


def check_brought(
    order: BrokerOrder | None, page: CheckedPage, held: Mapping[int, bytes]
) -> tuple[BrokerOrder | None, tuple[CheckedLine, ...]]:
    """The order with a page, and the lines of it that are new. `held` has the records that are here
    under the numbers of the page. CommitForked, PastEnd: nothing is taken.
    """
    if order is None:
        return _begin(page), page.lines
    _check_group(order, page.mesh, page.incarnation, page.tag)
    for line in page.lines:
        number = line.record.number
        if number in held and held[number] != line.record_bytes:
            raise CommitForked(f"commit {number} of {page.mesh!r} is another one at this broker")
    new = tuple([line for line in page.lines if line.record.number > order.last])
    if page.first > order.last + 1:
        raise PastEnd(
            f"a page begins at commit {page.first} of {page.mesh!r}, and this broker has "
            f"{order.last}",
            hint="bring what lies between first, or the state",
        )
    if not new:
        return order, ()
    _check_follows(order, new[0])
    return _moved(order, page, new[-1]), new


def _begin(page: CheckedPage) -> BrokerOrder | None:
    if not page.lines:
        return None
    return BrokerOrder(
        engine=page.engine,
        incarnation=page.incarnation,
        tag=page.tag,
        fence=str(page.lines[-1].record.fence),
        first=page.first,
        last=page.lines[-1].record.number,
    )


def _check_group(order: BrokerOrder, mesh: str, incarnation: int, tag: bytes) -> None:
    if incarnation == order.incarnation and tag and order.tag and tag != order.tag:
        raise CommitForked(f"another group of voters claims {mesh!r}, in the same incarnation")


def _check_follows(order: BrokerOrder, line: CheckedLine) -> None:
    record = line.record
    what = f"commit {record.number} of {record.mesh!r}"
    last = parse_token(order.fence) if order.fence else None
    try:
        check_newer(last, record.fence, what)
    except HoldfastError as error:
        raise CommitForked(error.message) from None
    if (
        last is not None
        and last.incarnation == record.fence.incarnation
        and record.fence.sequence <= last.sequence
    ):
        raise CommitForked(f"{what} has a sequence that is not above {last.sequence}")


def _moved(order: BrokerOrder, page: CheckedPage, last: CheckedLine) -> BrokerOrder:
    moved = msgspec.structs.replace(order, last=last.record.number, fence=str(last.record.fence))
    if page.incarnation < order.incarnation:
        return moved
    return msgspec.structs.replace(
        moved, engine=page.engine, incarnation=page.incarnation, tag=page.tag or order.tag
    )


def check_state(
    order: BrokerOrder | None, header: SnapshotHeader, engine: str, sha256: str, size: int
) -> BrokerOrder | None:
    """The order with a state that is an object here; None if it has a later one. A state may be
    ahead of the commits: then these are covered by it, and the next to come follows it.
    """
    state = {"state_number": header.number, "state_sha256": sha256, "state_size": size}
    whole = BrokerOrder(
        engine=engine,
        incarnation=header.incarnation,
        tag=header.tag,
        fence="" if header.fence is None else str(header.fence),
        first=header.number + 1,
        last=header.number,
        **state,  # type: ignore[arg-type]
    )
    if order is None:
        return whole
    _check_group(order, header.mesh, header.incarnation, header.tag)
    if header.number <= order.state_number:
        return None
    if header.number <= order.last:
        return msgspec.structs.replace(order, **state)
    _check_ahead(order, header)
    return whole


def _check_ahead(order: BrokerOrder, header: SnapshotHeader) -> None:
    last = parse_token(order.fence) if order.fence else None
    if last is None or header.fence is None or header.fence.order > last.order:
        return
    raise CommitForked(
        f"a state of {header.mesh!r} has {header.number} commits up to {header.fence}, and this "
        f"broker has {order.last} up to {last}"
    )
