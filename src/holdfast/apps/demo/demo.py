"""`holdfast demo`: the whole at work in less than a minute, on real homes and real processes.

Each chapter tells what happens, then checks what it claims: a claim that does not hold ends the
demo with an error. What is broken off leaves no process and no folder.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import monotonic, time
from typing import Final

import msgspec

from holdfast.apps.demo import what_next
from holdfast.apps.demo.chapters import CHAPTERS, DemoChapter
from holdfast.apps.demo.screen import READING_S, DemoScreen
from holdfast.apps.demo.stage import DemoStage
from holdfast.rules.errors import HoldfastError

_ABOUT: Final = "Holdfast: shared state for machines that come and go."


class PlayedDemo(msgspec.Struct, kw_only=True):
    folder: str
    chapters: list[str]
    checks: int
    """How many claims were checked."""
    seconds: float
    files: list[str]
    """What was recorded."""


def run(
    write: Callable[[str], None],
    folder: Path | None = None,
    chapters: list[DemoChapter] | None = None,
    *,
    in_colour: bool = False,
    slowly: bool = False,
    record: Path | None = None,
    console: bool = False,
) -> PlayedDemo:
    """Plays chapters (all by default) in a folder (a new temporary one by default). `write` prints
    text at once. `slowly`: for somebody who reads along. `record`: the file of the recording.
    `console`: all of it stays up afterwards, until Ctrl-C.
    """
    chapters = list(CHAPTERS) if chapters is None else chapters
    if record is not None:
        record.open("ab").close()  # what cannot be written is said before the demo, not after it
    screen = DemoScreen(write, in_colour=in_colour, reading_s=READING_S if slowly else 0)
    is_ours = folder is None
    folder = Path(tempfile.mkdtemp(prefix="holdfast-demo-")) if folder is None else folder
    # What a node finds after a kill is a line of the story, and no news here.
    logging.getLogger("holdfast").addHandler(logging.NullHandler())
    began, began_at_s = monotonic(), int(time())
    with DemoStage(folder, screen, is_ours=is_ours, has_console=console) as stage:
        screen.said(_ABOUT)
        screen.said("Real processes on this machine; every ✓ below was checked, just now.")
        _play(stage, chapters)
        seconds = round(monotonic() - began, 1)
        screen.blank()
        screen.said(f"Claims checked: {stage.checks}; all of them hold. {seconds:.0f} s.")
        files = [] if record is None else _recorded(screen, record, began_at_s)
        if console:
            from holdfast.apps.demo import live

            live.stay(stage)
        what_next.say(stage)
    return PlayedDemo(
        folder=str(folder),
        chapters=[chapter.name for chapter in chapters],
        checks=stage.checks,
        seconds=seconds,
        files=files,
    )


def _recorded(screen: DemoScreen, file: Path, began_at_s: int) -> list[str]:
    from holdfast.apps.demo import recording

    return [str(one) for one in recording.save(screen.lines, file, began_at_s)]


def _play(stage: DemoStage, chapters: list[DemoChapter]) -> None:
    for number, chapter in enumerate(chapters, start=1):
        stage.screen.chapter = chapter.name
        stage.screen.title(f"{number}/{len(chapters)}  {chapter.title}", chapter.name)
        try:
            chapter.play(stage)
        except HoldfastError as error:
            stage.screen.failed(f"{error.code}: {error.message}")
            raise
    stage.screen.chapter = ""
