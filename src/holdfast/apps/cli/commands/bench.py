"""`holdfast bench`: this disk, this home and a broker, beside the figures of the README.

Everything is made anew for it, on the disk of the home and in a mesh of its own at the broker, and
is removed at the end, also on Ctrl-C. The home itself is read for its broker and its key only.
"""

from __future__ import annotations

import os
from math import isnan

import click

from holdfast.apps.bench import run as bench
from holdfast.apps.bench.run import BenchReport, BrokerToMeasure, Measured
from holdfast.apps.cli.declare import command_of
from holdfast.apps.cli.progress import Progress
from holdfast.apps.cli.session import CommandSession
from holdfast.node.library.node import Node
from holdfast.node.trust.trust import Trust
from holdfast.rules.errors import BadInput
from holdfast.rules.invites import check_broker_url
from holdfast.rules.limits import BENCH_S, BENCH_S_MAX, BENCH_S_MIN
from holdfast.storage.files.home import HomePaths

_TOKEN = "HOLDFAST_BROKER_TOKEN"


@command_of("bench")
@click.option(
    "--seconds",
    type=click.FloatRange(BENCH_S_MIN, BENCH_S_MAX),
    default=BENCH_S,
    show_default=True,
    metavar="N",
    help="About how long it takes.",
)
@click.option("--broker", metavar="ADDRESS", help="This broker; else that of the first mesh.")
@click.option("--card", metavar="CARD", help="The card of the broker, if no mesh is shared there.")
@click.option("--no-broker", is_flag=True, help="Leave the broker out.")
def bench_(
    session: CommandSession, seconds: float, broker: str | None, card: str | None, no_broker: bool
) -> None:
    """Measure this disk, this home and its broker, and compare with the figures of the README.

    In a throw-away home on the same disk, and in a throw-away mesh at the broker, which may ask for
    the token in $HOLDFAST_BROKER_TOKEN. Both are removed. TO README above 1: better than there.
    Whatever else the machine does meanwhile makes figures worse.
    """
    if isnan(seconds):  # it is in every range
        raise BadInput("nan is no number of seconds", hint="give a number, as --seconds 30")
    with session.node() as node:
        asked = None if no_broker else _broker(node, broker, card)
        now_ms, beside = node._engine.ctx.now_ms(), node.home.parent
        progress = Progress(session, "", leaves="nothing of it is left: it goes as it stops")
        with progress:
            found = bench.run(beside, seconds, asked, now_ms, progress.step)
        _show(session, found, asked)


def _broker(node: Node, url: str | None, card: str | None) -> BrokerToMeasure | None:
    known = {row.broker_url: row.broker_card for row in node.meshes() if row.broker_url}
    if url is None:
        url = next(iter(known), None)
        if url is None:
            return None
    address = check_broker_url(url).rstrip("/")
    pinned = known.get(address) or card
    if pinned is None:
        raise BadInput(
            f"no mesh is shared through {address}",
            hint="name its card with --card; where it runs, it is shown by: holdfast broker status",
        )
    trust = Trust(node._engine, HomePaths(node.home))
    return BrokerToMeasure(trust, address, pinned, os.environ.get(_TOKEN) or None)


def _show(session: CommandSession, found: BenchReport, asked: BrokerToMeasure | None) -> None:
    if session.as_json:
        session.show({"figures": found.figures, "problems": found.problems})
        return
    session.rows(map(_row, found.figures), "part what here readme to_readme", empty="")
    for part, problem in found.problems.items():
        session.warn(f"{part}_not_measured", f"{part}: {problem.message} ({problem.hint})")
    if asked is None:
        session.talk("no broker was measured; name one: holdfast bench --broker ADDRESS")


def _row(one: Measured) -> dict[str, str | None]:
    readme = None
    if one.readme is not None:
        low, high = one.readme
        readme = _number(low, one.unit)
        if high != low:
            readme = f"{_number(low, 'x')} to {readme if high == low else _number(high, one.unit)}"
    return {
        "part": one.part,
        "what": one.what,
        "here": _number(one.here, one.unit),
        "readme": readme,
        "to_readme": None if one.ratio is None else f"{one.ratio:.2f}",
    }


def _number(value: float, unit: str) -> str:
    text = f"{value:,.0f}" if value >= 100 else f"{value:.2f}"
    return f"{text} {unit}" if unit not in ("x", "/s") else text + unit.strip("x")
