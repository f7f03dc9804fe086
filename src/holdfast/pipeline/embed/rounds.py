"""Long work in rounds: the rounds that are done are noted, so that a rerun does only the rest.

The note is a small file in the lake, `jobs/<name>.json`. It says into how many rounds the work was
divided and how many of them are done; it is removed when all are. The note only saves work: without
it some rounds are done twice, which must do no harm.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256

import msgspec

from holdfast.pipeline.lake.folder import Folder
from holdfast.pipeline.lake.lake import Lake


class _Note(msgspec.Struct):
    what: str
    rounds: int
    done: int


class Rounds:
    """The rounds of one piece of work, which is identified by the text `what`."""

    def __init__(self, lake: Lake, what: str) -> None:
        self._what = what
        self._folder = Folder(f"{lake.root}/jobs", lake.options)
        self._name = f"{sha256(what.encode()).hexdigest()[:32]}.json"
        self.resumed = 0
        """Rounds that an earlier run had done."""

    def run(self, rounds: int) -> Iterator[tuple[int, int]]:
        """Gives number and count of each round that is left. A round is noted as done when the
        caller asks for the next one. Work that was cut short keeps its number of rounds, whatever
        `rounds` says now.
        """
        note = self._read() or _Note(self._what, max(1, rounds), 0)
        self.resumed = note.done
        for number in range(note.done, note.rounds):
            yield number, note.rounds
            note.done = number + 1
            if note.done < note.rounds:
                self._folder.write(self._name, msgspec.json.encode(note))
        self._folder.delete(self._name)

    def _read(self) -> _Note | None:
        raw = self._folder.read(self._name)
        if raw is None:
            return None
        try:
            note = msgspec.json.decode(raw, type=_Note)
        except msgspec.DecodeError:
            return None
        return note if note.what == self._what and 0 <= note.done <= note.rounds else None
