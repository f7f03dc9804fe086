"""Which of the names that there are a mistyped one may have meant.

Two names are as far apart as it takes slips of the hand to get from one to the other: a letter too
much, one too few, a wrong one, two in the wrong order. Few slips in a long name are a typo; in a
short one they make another name.

This module stands on the CLI's cold path: keep its imports few.
"""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.rules.limits import NEAREST_CHARS_MAX


def nearest(given: str, known: Iterable[str]) -> str | None:
    """The known name that is nearest to what was given; None if none is near. What differs by case
    only is nearest; of equally near ones the first by the alphabet.
    """
    if not 0 < len(given) <= NEAREST_CHARS_MAX:
        return None
    most = 1 if len(given) < 5 else 2 if len(given) < 10 else 3
    folded = given.casefold()
    best: tuple[int, str] | None = None
    for name in known:
        if name == given or abs(len(name) - len(given)) > most:
            continue
        slips = _slips(folded, name.casefold(), most)
        # A name of which more than every second letter is wrong is another name.
        if slips <= most and 2 * slips <= len(given):
            best = min(best or (slips, name), (slips, name))
    return None if best is None else best[1]


def _slips(one: str, other: str, most: int) -> int:
    """How many slips lie between two texts; more than `most` is all that is said of far ones."""
    before: list[int] = []
    row = list(range(len(other) + 1))
    for at, char in enumerate(one, 1):
        earlier, before, row = before, row, [at]
        for place, letter in enumerate(other, 1):
            wrong = before[place - 1] + (char != letter)
            slips = min(wrong, before[place] + 1, row[-1] + 1)
            swapped = at > 1 and place > 1 and char == other[place - 2] and one[at - 2] == letter
            if swapped:
                slips = min(slips, earlier[place - 2] + 1)
            row.append(slips)
        if min(row) > most:
            return most + 1
    return row[-1]
