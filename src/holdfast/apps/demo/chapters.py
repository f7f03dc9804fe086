"""The chapters of the demo, in their order: what each is called, and what it shows.

Names stand alone here, so that the command knows them without loading what they play.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from holdfast.apps.demo.stage import DemoStage


class DemoChapter(NamedTuple):
    name: str
    title: str
    module: str

    @property
    def play(self) -> Callable[[DemoStage], None]:
        found: Callable[[DemoStage], None] = import_module(f"holdfast.apps.demo.{self.module}").play
        return found


CHAPTERS: Final = (
    DemoChapter("killed", "A process is killed in the middle of its writes", "killed"),
    DemoChapter("lan", "Two laptops find each other on the LAN, part and meet again", "lan"),
    DemoChapter("wrecked", "A disk goes bad under a database", "wrecked"),
    DemoChapter("broker", "A broker between them is killed, and comes back", "through_broker"),
    DemoChapter("zone", "A plant at the end of a bad line", "zone"),
    DemoChapter("quorum", "Three voters: one is cut off, then the leader dies", "voters"),
    DemoChapter("lake", "Spark reads all their logs into one lake, and audits it", "lake"),
)
NAMES: Final = tuple(chapter.name for chapter in CHAPTERS)


def chosen(names: tuple[str, ...]) -> list[DemoChapter]:
    """Those of these names, in the order of the story; all of them if none is named."""
    return [chapter for chapter in CHAPTERS if not names or chapter.name in names]
