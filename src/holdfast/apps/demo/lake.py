"""Spark reads the logs of all homes into a lake, folds them, and audits what it holds.

That is a process of its own (`lake_reading`), so that the Java below it ends with the others,
whatever it is doing. It needs the extra `spark`: without it the chapter is left out.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Final

import msgspec

from holdfast.apps.demo import lan
from holdfast.apps.demo.lake_reading import AUDITED, FOLDED, LEFT_OUT, READ
from holdfast.apps.demo.processes import PATIENCE_S
from holdfast.apps.demo.stage import DemoStage
from holdfast.rules.errors import DemoFailed


def play(stage: DemoStage) -> None:
    lan.share_once(stage)
    stage.tell("Spark starts, and reads every log where it stands; it takes a few seconds")
    lake, said = stage.folder / "lake", stage.folder / "spark.txt"
    homes = [str(stage.home(peer)) for peer in stage.peers]
    reading = [sys.executable, "-m", "holdfast.apps.demo.lake_reading", str(lake), lan.MESH]
    with (
        said.open("wb") as errors,
        stage.processes.lines([*reading, *homes], stderr=errors) as child,
    ):
        for line in child.lines:
            kind, *values = msgspec.json.decode(line)
            _SAID[kind](stage, *values)
        code = child.process.wait(PATIENCE_S)
    if code:
        last = said.read_text(errors="replace").strip().rpartition("\n")[2]
        raise DemoFailed(f"what reads the logs has ended with {code}: {last}")
    if lake.exists():
        stage.lake = lake


def _left_out(stage: DemoStage, message: str, hint: str) -> None:
    stage.screen.left_out(f"left out: {message}")
    stage.screen.left_out(f"get it with: {hint}")


def _read(stage: DemoStage, logs: int, read: int, new: int, lag: int) -> None:
    stage.prove(
        lag == 0 and 0 < new <= read,
        f"{logs} logs read to their ends: {read} entries, each change kept once: {new}",
        f"{lag} are left",
    )


def _folded(stage: DemoStage, rows: dict[str, str]) -> None:
    with stage.node("ana") as ana:
        here = {row.key: row.value for row in lan.garden_of(ana).state.list()}
    stage.prove(rows == here, "folded, the lake holds of the garden what ana holds", f"{rows}")


def _audited(stage: DemoStage, audits: int, findings: int, details: str) -> None:
    stage.prove(findings == 0, f"{audits} audits find nothing wrong", details)


_SAID: Final[dict[str, Callable[..., None]]] = {
    LEFT_OUT: _left_out,
    READ: _read,
    FOLDED: _folded,
    AUDITED: _audited,
}
