"""The settings that are in force, and tokens: who else may call this node."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final

from holdfast.apps.web.page import Action, ConsolePage, Field, number, words
from holdfast.apps.web.view import PageView


async def settings(view: PageView) -> Mapping[str, Any]:
    version, found, tokens, status = await asyncio.gather(
        view.get("/v1/version"),
        view.maybe("/v1/settings"),
        view.maybe("/v1/tokens"),
        view.maybe("/v1/status"),
    )
    return {
        "version": version,
        "rows": [] if found is None else _rows(found["settings"]),
        "tokens": None if tokens is None else tokens["tokens"],
        "status": status,
        "card": None if found is None else found["card"],
    }


def _rows(found: Mapping[str, Any], before: str = "") -> list[tuple[str, str]]:
    """Every setting by its name in the file, as it would be written there."""
    rows: list[tuple[str, str]] = []
    for name, value in found.items():
        if isinstance(value, dict):
            rows += _rows(value, f"{before}{name}.")
        else:
            rows.append((before + name, _said(value)))
    return rows


def _said(value: Any) -> str:
    if value is None or value == []:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


ADD_TOKEN: Final = Action(
    "token.add",
    label="Make a token",
    call="POST /v1/tokens",
    command="holdfast token add {name}[ --days {days}] {--reads reads}",
    fields={
        "name": Field(needed=True, take=str.strip),
        "reads": Field(take=words),
        "days": Field(take=number),
    },
    shows="token.html",
    tone="main",
    undone="token.revoke",
)
REVOKE_TOKEN: Final = Action(
    "token.revoke",
    label="Revoke",
    call="DELETE /v1/tokens/{name}",
    command="holdfast token revoke {name}",
    done="The token {name} is good for nothing any more.",
    asks="Revoke the token {name}? Whoever uses it is out at once.",
    tone="danger",
)
RELOAD: Final = Action(
    "settings.reload",
    label="Read settings again",
    call="POST /v1/reload",
    command="holdfast reload",
    done="The settings were read again.",
    undone="the settings are as their file says: change it, and reload",
)

PAGES: Final = (
    ConsolePage(
        path="/settings",
        title="Settings",
        template="settings.html",
        load=settings,
        nav="Settings",
        key="s",
        actions=(ADD_TOKEN, REVOKE_TOKEN, RELOAD),
    ),
)
