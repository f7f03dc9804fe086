"""Readers of the log, how far each is, and what the log keeps for them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from holdfast.apps.web.live.lags import LOOKED
from holdfast.apps.web.page import Action, ConsolePage
from holdfast.apps.web.view import PageView


async def consumers(view: PageView) -> Mapping[str, Any]:
    log = await view.get("/v1/log")
    found = (await view.get("/v1/consumers"))["consumers"]
    held = max(1, log["head"] - log["first"] + 1)
    rows = [{**row, "share": min(1.0, row["lag"] / held)} for row in found]
    return {
        "rows": sorted(rows, key=lambda row: (-row["lag"], row["name"])),
        "log": log,
        "plot": None if view.lags is None else view.lags.plot([row["name"] for row in found]),
        "lowest": min((row["frontier"] for row in found), default=None),
    }


RETIRE: Final = Action(
    "consumer.retire",
    label="Retire",
    call="DELETE /v1/consumers/{name}",
    command="holdfast consumer retire {name}",
    done="{name} is retired: the log no longer waits for it.",
    asks="Retire {name}? The log may then lose what it has not read.",
    tone="danger",
)

PAGES: Final = (
    ConsolePage(
        path="/consumers",
        title="Readers of the log",
        template="consumers.html",
        load=consumers,
        live=("rows", "lags"),
        wakes=("log", "store", LOOKED),
        nav="Readers",
        key="r",
        actions=(RETIRE,),
    ),
)
