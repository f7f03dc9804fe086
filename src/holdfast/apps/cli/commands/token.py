"""`holdfast token`: secrets by which people and programs call this node, or scrape a broker."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from holdfast.apps.cli import own_daemon
from holdfast.apps.cli.commands.peer import DAYS, READS, trusting, warn_of_unknown
from holdfast.apps.cli.declare import DRY, noun, verb
from holdfast.apps.cli.session import CommandSession
from holdfast.rules.errors import BadInput
from holdfast.rules.rows import TokenRow
from holdfast.service.clock import SystemClock

if TYPE_CHECKING:
    from holdfast.broker.http.metrics_tokens import MetricsToken, MetricsTokens

token_ = noun("token", "Secrets by which people and programs may call this node.")

STORE = click.option(
    "--store",
    metavar="FOLDER",
    help="For the broker in this folder instead: its tokens read its /metrics and nothing else.",
)


@verb(token_, "add", mesh=False)
@click.argument("name")
@READS
@DAYS
@STORE
def add(
    session: CommandSession, name: str, reads: tuple[str, ...], days: int | None, store: str | None
) -> None:
    """Make a token and show it, this once. With --reads it only reads, from anywhere. Without, it
    may do everything, on this machine. With --store it reads the metrics of that broker.
    """
    if store is not None:
        if reads:
            raise BadInput("a token of a broker reads its metrics", hint="leave --reads out")
        _add_to_broker(session, store, name, days)
        return
    with trusting(session) as (node, trust):
        secret = trust.add_token(name, reads=reads or None, days=days)
        own_daemon.refresh(node.home)
        row = next(row for row in trust.tokens() if row.name == name)
        warn_of_unknown(session, node, reads)
        session.talk(f"{name} {_may(row)}")
        session.talk("it is not shown again; send it as: Authorization: Bearer TOKEN")
        session.show({**_token(row, row.created_at), "secret": secret}, f"{secret}\n")


@verb(token_, "list", mesh=False, lists="created_at")
@STORE
def list_(session: CommandSession, store: str | None) -> None:
    """List the tokens, without their secrets."""
    if store is not None:
        now = SystemClock().now_ms()
        session.rows(
            (_broker_token(row, now) for row in _of_broker(store).all()),
            "token scope created_at expires_at expired",
            empty="no tokens; make one with: holdfast token add NAME --store FOLDER",
        )
        return
    with trusting(session) as (node, trust):
        now = node._engine.ctx.now_ms()
        session.rows(
            (_token(row, now) for row in trust.tokens()),
            "token scope reads created_at expires_at expired",
            empty="no tokens; make one with: holdfast token add NAME",
        )


@verb(token_, "revoke", mesh=False, removes=DRY)
@click.argument("name")
@STORE
def revoke(session: CommandSession, name: str, store: str | None) -> None:
    """Take a token back: from now on it is no longer good."""
    if store is not None:
        tokens = _of_broker(store)
        known = {row.name for row in tokens.all()}
        what = f"take back the token {name}"
        if name in known and not session.goes_on(what, asks=False, token=name):
            return
        tokens.revoke(name)
        session.talk(f"{name} is revoked")
        session.show({"token": name, "revoked": True}, f"{name}\n")
        return
    with trusting(session) as (node, trust):
        known = {row.name for row in trust.tokens()}
        what = f"take back the token {name}"
        if name in known and not session.goes_on(what, asks=False, token=name):
            return
        trust.revoke_token(name)
        own_daemon.refresh(node.home)
        session.talk(f"{name} is revoked")
        session.show({"token": name, "revoked": True}, f"{name}\n")


def _add_to_broker(session: CommandSession, store: str, name: str, days: int | None) -> None:
    now = SystemClock().now_ms()
    tokens = _of_broker(store)
    secret = tokens.add(name, now, days=days)
    row = next(row for row in tokens.all() if row.name == name)
    session.talk(f"{name} may read the metrics of the broker in {store}, from anywhere")
    session.talk("it is not shown again; send it as: Authorization: Bearer TOKEN")
    session.show({**_broker_token(row, now), "secret": secret}, f"{secret}\n")


def _of_broker(store: str) -> MetricsTokens:
    from holdfast.broker.http.metrics_tokens import MetricsTokens

    folder = Path(store).absolute()
    if not (folder / "identity.key").exists():
        raise BadInput(
            f"there is no broker in {folder}",
            hint=f"start it first: holdfast broker serve --store {folder}",
        )
    return MetricsTokens(folder)


def _broker_token(row: MetricsToken, now_ms: int) -> dict[str, Any]:
    return {
        "token": row.name,
        "scope": "metrics",
        "created_at": row.created_at,
        "expires_at": row.expires_at,
        "expired": row.expires_at is not None and now_ms >= row.expires_at,
    }


def _token(row: TokenRow, now_ms: int) -> dict[str, Any]:
    return {
        "token": row.name,
        "scope": row.scope,
        "reads": list(row.reads),
        "created_at": row.created_at,
        "expires_at": row.expires_at,
        "expired": row.expires_at is not None and now_ms >= row.expires_at,
    }


def _may(row: TokenRow) -> str:
    if row.scope == "all":
        return "may do everything on this machine, and nothing from elsewhere"
    meshes = "every mesh" if "*" in row.reads else ", ".join(row.reads)
    return f"may read {meshes}, from anywhere"
