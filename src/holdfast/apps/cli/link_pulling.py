"""`holdfast link pull`: by the daemon of the home if there is one, else by this process."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from holdfast.apps.cli import own_daemon
from holdfast.node.library.node import Node
from holdfast.node.links.pull import (
    DaemonTakesOver,
    LinkPulled,
    PullStanding,
    PullTicket,
    follow_pull,
    pull_once,
)
from holdfast.node.links.status import LinkStatus
from holdfast.node.trust.trust import Trust
from holdfast.rules.errors import NoDaemon, StoreBusy, Unreachable
from holdfast.rules.limits import LINK_CONNECT_MS_MAX, LINK_READ_MS_MAX, SECOND_MS, SYNC_WAIT_MS
from holdfast.service.instance_lock import daemon_note
from holdfast.storage.files.home import HomePaths

OnProgress = Callable[[int, int | None], None]

_HANDOVERS_MAX = 3
"""How often a daemon may come and go while one command waits."""


def pull_now(node: Node, name: str, patience_s: int | None, progress: OnProgress) -> LinkPulled:
    """Pulls a link until it has what its source had when it was asked."""
    paths = HomePaths(node.home)
    patience_ms = SYNC_WAIT_MS if patience_s is None else patience_s * SECOND_MS

    def on_pulling(link: LinkStatus, ticket: PullTicket) -> None:
        progress(link.cursor, ticket.offset)

    for _ in range(_HANDOVERS_MAX):
        try:
            if daemon_note(paths) is None:
                return pull_once(
                    node._engine,
                    Trust(node._engine, paths),
                    paths,
                    name,
                    patience_ms=patience_ms,
                    on_pulling=on_pulling,
                )
            return follow_pull(
                lambda ticket: _ask(node, name, ticket),
                by_daemon=True,
                patience_ms=patience_ms,
                on_pulling=on_pulling,
            )
        except (DaemonTakesOver, NoDaemon, StoreBusy) as error:
            moved = error
    raise StoreBusy(
        f"a daemon of {node.home} comes and goes",
        hint="what has come is kept; the same command goes on from there",
    ) from moved


def _ask(node: Node, name: str, ticket: PullTicket | None) -> PullStanding:
    body = msgspec.json.encode({"ticket": ticket})
    # The daemon asks the source before it answers.
    patience_ms = 2 * (LINK_CONNECT_MS_MAX + LINK_READ_MS_MAX)
    try:
        answer = own_daemon.ask(node.home, "POST", f"/v1/links/{name}/pull", body, patience_ms)
    except NoDaemon as error:
        if isinstance(error.__cause__, Unreachable) and daemon_note(HomePaths(node.home)):
            raise error.__cause__ from None  # the daemon is there, and says so of the source
        raise
    return msgspec.json.decode(answer, type=PullStanding)
