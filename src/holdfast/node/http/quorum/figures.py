"""Figures of the quorums for `/metrics`: who decides, how far each is, what waits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from prometheus_client.core import GaugeMetricFamily, Metric

from holdfast.node.http.context import NodeApi
from holdfast.node.quorum.ports import OrderStatus
from holdfast.node.quorum.standing import QuorumStanding, quorum_standing
from holdfast.rules.errors import NoVoters
from holdfast.storage.ports import Reader


class QuorumFigures(NamedTuple):
    order: OrderStatus
    standing: QuorumStanding


async def quorum_figures(api: NodeApi) -> list[QuorumFigures]:
    """How every quorum of this home stands."""
    if api.bus is None:
        return []
    engine, minority = api.engine, api.settings.quorum.minority
    found: list[QuorumFigures] = []
    for row in engine.read("quorum.list", lambda tx: tx.quorum_list()):
        mesh = row.mesh
        try:
            order = await api.bus.quorum.status(mesh)
        except NoVoters:
            continue  # its order begins, or has ended, at this moment
        found.append(QuorumFigures(order, engine.read("metrics", _look(mesh, minority))))
    return found


def _look(mesh: str, minority: str) -> Callable[[Reader], QuorumStanding]:
    return lambda tx: quorum_standing(tx, mesh, minority)


def quorum_metrics(found: Sequence[QuorumFigures]) -> Iterator[Metric]:
    if not found:
        return

    def gauge(name: str, text: str, *labels: str) -> GaugeMetricFamily:
        return GaugeMetricFamily(f"holdfast_quorum_{name}", text, labels=["mesh", *labels])

    majority = gauge("majority_heard", "1 while a majority of the voters was heard lately")
    coordinates = gauge("coordinates", "1 while this node coordinates")
    epoch = gauge("lease_epoch", "The lease epoch of the coordinator that this node knows")
    incarnation = gauge("incarnation", "How often the group was begun anew")
    committed = gauge("committed_index", "The last entry that is known to be committed")
    applied = gauge("applied_index", "The last entry that this node has folded")
    confirmed = gauge("seconds_since_confirmed", "Since this node last knew that it has all")
    late = gauge("loop_late_seconds", "How late the event loop ran at worst, lately")
    under_way = gauge("under_way", "Proposals and reads of this node that are under way")
    lag = gauge("member_lag_entries", "Entries that the disk of a member lacks", "peer")
    linked = gauge("member_linked", "1 while a link to a member stands", "peer")
    writes = gauge("writes", "Strong writes of this node that need something", "status")
    conflicts = gauge("conflicts", "Intents that need a decision")
    paused = gauge("replay_paused", "1 while writes that wait are not replayed")
    for order, standing in found:
        who = [order.mesh]
        majority.add_metric(who, float(order.has_quorum))
        coordinates.add_metric(who, float(order.part == "coordinator"))
        epoch.add_metric(who, order.lease_epoch)
        incarnation.add_metric(who, order.incarnation)
        committed.add_metric(who, order.committed)
        applied.add_metric(who, order.applied)
        if order.confirmed_ms is not None:
            confirmed.add_metric(who, order.confirmed_ms / 1000)
        late.add_metric(who, order.late_ms / 1000)
        under_way.add_metric(who, order.waiting)
        for member in order.members:
            if member.match is not None:
                lag.add_metric([*who, member.peer], max(0, order.committed - member.match))
            linked.add_metric([*who, member.peer], float(member.linked))
        writes.add_metric([*who, "pending"], standing.writes.pending)
        writes.add_metric([*who, "failed"], standing.writes.failed)
        conflicts.add_metric(who, standing.conflicts)
        paused.add_metric(who, float(standing.paused))
    yield from (majority, coordinates, epoch, incarnation, committed, applied, confirmed, late)
    yield from (under_way, lag, linked, writes, conflicts, paused)
