"""`holdfast ping`: how a peer or a broker is reached, and how long it takes there and back.

Each round tries every way that this node has (`node/bus/ways.py`), by the daemon where one holds
the bus. A broker is asked directly, and needs no daemon.
"""

from __future__ import annotations

import os
from threading import Event
from typing import Any

import click

from holdfast.apps.cli import output
from holdfast.apps.cli.declare import command_of
from holdfast.apps.cli.session import CommandSession
from holdfast.apps.cli.times import parse_span
from holdfast.node.bus.ways import BROKER, PingRound, Way, lines
from holdfast.rules.errors import PeerUnreachable, Unreachable
from holdfast.rules.limits import PING_ROUNDS_MAX, SECOND_MS
from holdfast.storage.files.contexts import contexts_of


@command_of("ping")
@click.argument("target")
@click.option(
    "--count",
    type=click.IntRange(1, PING_ROUNDS_MAX),
    default=3,
    show_default=True,
    metavar="N",
    help="How many rounds.",
)
@click.option("--interval", default="1s", metavar="SPAN", help="The pause between two; 1s.")
@click.option("--card", metavar="CARD", help="Of a broker through which no mesh is shared.")
def ping_(
    session: CommandSession, target: str, count: int, interval: str, card: str | None
) -> None:
    """Say how TARGET is reached, and how long it takes there and back.

    TARGET is a peer, or a broker by its name, its address or its context. A peer may be reached
    over the bus (lan, bus), by a link, and through a broker, which keeps what is sent to it. Exit
    code 1 or 3 if nothing answers.
    """
    pause_s = parse_span(interval) / SECOND_MS
    named, card = _broker_of_context(target, card)
    rounds: list[PingRound] = []
    never = Event()
    try:
        with session.node() as node:
            while True:
                rounds.append(node.ping(named, card=card))
                if not session.as_json:
                    output.out("".join(f"{line}\n" for line in lines(rounds[-1])))
                if len(rounds) == count:
                    break
                never.wait(pause_s)
    except KeyboardInterrupt:
        if not rounds:
            raise
    _conclude(session, target, rounds)


def _broker_of_context(target: str, card: str | None) -> tuple[str, str | None]:
    contexts = contexts_of(os.environ)
    if target in contexts.names():
        found = contexts.get(target)
        if found.kind == "broker" and "://" in found.place:
            return found.place, card or found.card or None
    return target, card


def _conclude(session: CommandSession, target: str, rounds: list[PingRound]) -> None:
    times = [best.ms for one in rounds if (best := one.best) is not None and best.ms is not None]
    best = rounds[-1].best
    if not times:
        raise _unreachable(target, rounds[-1])
    summary: dict[str, Any] = {"rounds": len(rounds), "answered": len(times)}
    summary |= {"min_ms": min(times), "mean_ms": sum(times) / len(times), "max_ms": max(times)}
    document = {"target": target, "kind": rounds[-1].kind, **summary}
    if session.as_json:
        session.show({**document, "best": best, "tries": rounds})
        return
    mean, least, most = (summary[f"{name}_ms"] for name in ("mean", "min", "max"))
    answered = f"{len(times)} of {len(rounds)} rounds answered"
    session.talk(f"{answered}; {least:.1f} / {mean:.1f} / {most:.1f} ms at least, on average, most")
    for line in _advice(rounds[-1], best):
        session.talk(line)


def _advice(found: PingRound, best: Way | None) -> list[str]:
    if best is None:
        return []
    said = []
    if best.card is not None:
        said.append(f"nobody has pinned this broker; it showed the card {best.card}")
    if found.kind == "peer" and best.way == BROKER:
        said.append(
            f"{found.target} itself was not reached: its broker keeps what is sent, and a message "
            "over the bus waits here"
        )
    return said


def _unreachable(target: str, last: PingRound) -> Unreachable:
    errors = [way.error for way in last.ways if way.error is not None]
    tried = "; ".join(f"{way.way} {way.name}" for way in last.ways)
    kind = Unreachable if last.kind == BROKER else PeerUnreachable
    hint = next((error.hint for error in errors if error.hint), "")
    return kind(f"{target} does not answer (tried: {tried})", hint=hint)
