"""`holdfast token`: the secrets by which people and programs may call this node."""

from __future__ import annotations

from typing import Any

import click

from holdfast.apps.cli import own_daemon
from holdfast.apps.cli.commands.peer import DAYS, READS, trusting, warn_of_unknown
from holdfast.apps.cli.declare import noun, verb
from holdfast.apps.cli.session import CommandSession
from holdfast.rules.rows import TokenRow

token_ = noun("token", "Secrets by which people and programs may call this node.")


@verb(token_, "add", mesh=False)
@click.argument("name")
@READS
@DAYS
def add(session: CommandSession, name: str, reads: tuple[str, ...], days: int | None) -> None:
    """Make a token and show it, this once. With --reads it only reads, from anywhere. Without, it
    may do everything, on this machine.
    """
    with trusting(session) as (node, trust):
        secret = trust.add_token(name, reads=reads or None, days=days)
        own_daemon.refresh(node.home)
        row = next(row for row in trust.tokens() if row.name == name)
        warn_of_unknown(session, node, reads)
        session.talk(f"{name} {_may(row)}")
        session.talk("it is not shown again; send it as: Authorization: Bearer TOKEN")
        session.show({**_token(row, row.created_at), "secret": secret}, f"{secret}\n")


@verb(token_, "list", mesh=False)
def list_(session: CommandSession) -> None:
    """List the tokens, without their secrets."""
    with trusting(session) as (node, trust):
        now = node._engine.ctx.now_ms()
        session.rows(
            (_token(row, now) for row in trust.tokens()),
            "token scope reads created_at expires_at expired",
            empty="no tokens; make one with: holdfast token add NAME",
        )


@verb(token_, "revoke", mesh=False)
@click.argument("name")
def revoke(session: CommandSession, name: str) -> None:
    """Take a token back: from now on it is no longer good."""
    with trusting(session) as (node, trust):
        trust.revoke_token(name)
        own_daemon.refresh(node.home)
        session.talk(f"{name} is revoked")
        session.show({"token": name, "revoked": True}, f"{name}\n")


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
