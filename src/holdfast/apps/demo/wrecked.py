"""A disk goes bad: that is noticed, a backup is restored, and a peer has what came after it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from holdfast.apps.demo import lan
from holdfast.apps.demo.stage import DemoStage
from holdfast.node.recovery.backup import backup, restore
from holdfast.rules.errors import HoldfastError

AFTER: Final = "written after the backup"


def play(stage: DemoStage) -> None:
    lan.share_once(stage)
    stage.switch_on("ana", "bob")
    with stage.node("ana") as ana, stage.node("bob") as bob:
        kept = stage.folder / "backup"
        report = backup(ana, kept)
        stage.tell(f"ana backs up while her daemon serves, up to entry {report.head} of her log")
        lan.garden_of(ana).state.set("harvest", AFTER)
        stage.until(lambda: lan.garden_of(bob).state.get("harvest") == AFTER, "bob has it too")
    stage.switch_off("ana")
    _overwrite_the_middle(stage.home("ana") / "data.db")
    stage.tell("her disk overwrites the middle third of her database")
    refused = _error_of(stage)
    stage.prove(refused, f"it is noticed, not served: {refused}")
    restore(kept, stage.home("ana"), force=True)
    with stage.node("ana") as ana:
        missing = lan.garden_of(ana).state.get("harvest") is None
    stage.switch_on("ana")
    with stage.node("ana") as ana, stage.node("bob") as bob:
        stage.until(lambda: lan.everything(ana) == lan.everything(bob), "ana has it all again")
        stage.prove(
            missing and lan.garden_of(ana).state.get("harvest") == AFTER,
            "restored; what the backup did not have comes back from bob",
        )


def _error_of(stage: DemoStage) -> str:
    """The code of the error that a reader gets; empty if there is none."""
    try:
        with stage.node("ana") as ana:
            list(lan.garden_of(ana).state.list())
    except HoldfastError as error:
        return error.code
    return ""


def _overwrite_the_middle(database: Path) -> None:
    size = database.stat().st_size
    with database.open("r+b") as file:
        file.seek(size // 3)
        file.write(os.urandom(size // 3))
