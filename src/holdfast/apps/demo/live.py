"""The demo as it stays with `--console`: all of it runs, the console is open, and a story goes on.

Each step of the story is done when somebody presses Enter, and says what to look at. In between the
laptops write a little, so that there is something to see. It ends with Ctrl-C.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from select import select
from typing import Final, NamedTuple

from holdfast.apps.demo import lan, through_broker, voters, zone
from holdfast.apps.demo.processes import environment
from holdfast.apps.demo.stage import DemoStage
from holdfast.apps.demo.what_next import command_line
from holdfast.rules.errors import HoldfastError

_STDIN: Final = 0
_BYTES_MOST: Final = 4096
BEAT_S: Final = 1.0
"""How often the laptops write something."""


class StoryStep(NamedTuple):
    needs: str
    """Whose home must be there; empty: the broker."""
    happens: str
    look: str
    do: Callable[[DemoStage], None]


class EnterKey:
    """Stdin, read line by line with a time limit."""

    def __init__(self) -> None:
        self.is_there = True
        self._lines = 0
        """Lines that came, and were not asked for yet."""

    def is_pressed_within(self, wait_s: float) -> bool:
        if not self._lines and select([_STDIN] if self.is_there else [], [], [], wait_s)[0]:
            data = os.read(_STDIN, _BYTES_MOST)
            self.is_there = bool(data)
            self._lines += data.count(b"\n")
        was_pressed = self._lines > 0
        self._lines -= was_pressed
        return was_pressed


def stay(stage: DemoStage) -> None:
    """Goes on until Ctrl-C."""
    stage.switch_on(*stage.peers)
    if stage.broker is not None and not stage.broker.is_up:
        stage.broker.start()
    screen = stage.screen
    screen.title("All of it runs now: two laptops, and whoever came to them", "console")
    _open_console(stage)
    keys = EnterKey()
    steps = [step for step in STEPS if _can(stage, step)]
    for number, step in enumerate(steps, start=1):
        screen.said(f"Enter: {step.happens} ({number} of {len(steps)}). Ctrl-C: the end.")
        if not _wait_for_enter(stage, keys):
            break
        step.do(stage)
        stage.tell(f"{step.happens}; look: {step.look}")
    screen.said("It goes on until Ctrl-C, which leaves no process and no folder.")
    while True:
        keys.is_pressed_within(BEAT_S)
        _beat(stage)


def _open_console(stage: DemoStage) -> None:
    """As anybody does. Not in our group of processes: the browser is none of the demo's."""
    home = str(stage.home("ana"))
    done = subprocess.run(
        [sys.executable, "-m", "holdfast", "console", "--home", home],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        env=environment(stage.folder),
    )
    for line in (done.stderr + done.stdout).decode().splitlines():
        stage.screen.command(line)
    stage.screen.said("Another time, or for bob:")
    for peer in list(stage.peers)[:2]:
        stage.screen.command(command_line("console", "--home", str(stage.home(peer))))
    stage.screen.blank()


def _can(stage: DemoStage, step: StoryStep) -> bool:
    return step.needs in stage.peers if step.needs else stage.broker is not None


def _wait_for_enter(stage: DemoStage, keys: EnterKey) -> bool:
    """False once nobody can press it any more; the laptops write meanwhile."""
    while keys.is_there:
        if keys.is_pressed_within(BEAT_S):
            return True
        _beat(stage)
    return False


def _beat(stage: DemoStage) -> None:
    """Ana counts, and the plant measures."""
    stage.beats += 1
    try:
        with stage.node("ana") as ana:
            meshes = {mesh.slug for mesh in ana.meshes()}
            for slug in meshes & {lan.MESH, through_broker.MESH}:
                ana.mesh(slug).state.set("beats", stage.beats)
        if "plant" in stage.peers:
            with stage.node("plant") as plant:
                heat = 20 + stage.beats % 7
                plant.mesh(zone.MESH).facts.append("pump-000", "temperature", heat)
    except HoldfastError as error:
        stage.tell(f"nothing was written this time: {error.message}")


# --- the steps -----------------------------------------------------------------------------------


def _kill_broker(stage: DemoStage) -> None:
    assert stage.broker is not None
    stage.broker.kill()


def _start_broker(stage: DemoStage) -> None:
    assert stage.broker is not None
    stage.broker.start()


def _part(stage: DemoStage) -> None:
    """Both write the same while neither hears of the other."""
    stage.switch_off("bob")
    with stage.node("bob") as bob:
        lan.garden_of(bob).state.set("gate", "left open by bob")
    with stage.node("ana") as ana:
        lan.garden_of(ana).state.set("gate", "locked by ana")


def _meet(stage: DemoStage) -> None:
    stage.switch_on("bob")


def _kill_leader(stage: DemoStage) -> None:
    """But for ana, whose console is open: she hands over first."""
    leader = voters.leader(stage)
    if leader == "ana":
        leader = voters.hand_over(stage)
    stage.switch_off(leader)


def _all_back(stage: DemoStage) -> None:
    stage.switch_on(*stage.peers)


STEPS: Final = (
    StoryStep(
        "",
        "the broker is killed",
        "ana's overview says so; what she writes into plans waits in her outbox",
        _kill_broker,
    ),
    StoryStep(
        "", "the broker comes back", "what waited goes out, and the warning ends", _start_broker
    ),
    StoryStep(
        "bob",
        "bob's laptop is closed, and both write the gate of the garden",
        "bob is away; ana's garden says: locked by ana",
        _part,
    ),
    StoryStep(
        "bob",
        "bob opens his laptop",
        "one of the two stands, the other is a conflict that can be restored",
        _meet,
    ),
    StoryStep(
        "cy",
        "cy is cut off from the other voters",
        "the voters of fleet: two of three go on",
        voters.cut_off_cy,
    ),
    StoryStep("cy", "cy is let in again", "all three voters are heard", voters.let_in_cy),
    StoryStep(
        "cy",
        "whoever coordinates the voters is killed",
        "a second later another one does, in a higher lease epoch",
        _kill_leader,
    ),
    StoryStep("cy", "all come back", "everybody is there, and nobody lags", _all_back),
)
