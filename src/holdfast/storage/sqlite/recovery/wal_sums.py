"""The checksums of a write-ahead log, many frames at a time.

A checksum is two numbers of 32 bits, and each word of the log adds both to it: of `first, second`
it makes `second, first + second + word`. That is the step of Fibonacci's numbers, so what a frame
adds does not depend on what came before it, and what came before is carried over a frame by three
of those numbers. The sums of all frames of a block are therefore taken side by side, in lanes of
one long integer each, which is ten times faster than one after the other.

A lane has 64 bits, for sums that grow until they are cut back to 32.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterator
from itertools import chain
from typing import Final

Sums = tuple[int, int]

_WORD: Final = 0xFFFFFFFF
_HEAD_WORDS: Final = 2
"""Of the head of a frame only its first words count: the others are the salts and the sums."""
_SKIPPED_WORDS: Final = 4
_BLOCK: Final = 256
_FEW: Final = 8
"""So few frames are faster one after the other."""
_STEPS: Final = 32
"""After so many words a lane is cut back: till then it cannot reach the next one."""


def checksum(data: bytes, before: Sums, big: bool) -> Sums:
    """The sums after these bytes, of which there are a multiple of eight."""
    return _after(_words(data, big), before)


def running_sums(
    data: bytes, start: int, frame_bytes: int, before: Sums, big: bool
) -> Iterator[Sums]:
    """The sums after each whole frame, from the one that begins at `start` on."""
    words_each = frame_bytes // 4
    last, same, next = _fibonacci(words_each - _SKIPPED_WORDS)
    first, second = before
    block_bytes = _BLOCK * frame_bytes
    whole = start + (len(data) - start) // frame_bytes * frame_bytes
    for at in range(start, whole, block_bytes):
        words = _words(data[at : min(at + block_bytes, whole)], big)
        for of_first, of_second in _each_alone(words, words_each):
            first, second = (
                first * last + second * same + of_first & _WORD,
                first * same + second * next + of_second & _WORD,
            )
            yield first, second


def _each_alone(words: array[int], words_each: int) -> Iterator[Sums]:
    """What each frame would sum up to if it were the first."""
    frames = len(words) // words_each
    if frames < _FEW:
        for at in range(0, len(words), words_each):
            head, page = at + _HEAD_WORDS, at + _HEAD_WORDS + _SKIPPED_WORDS
            yield _after(words[at:head] + words[page : at + words_each], (0, 0))
        return
    lanes = (frames + 1) // 2
    cut = int.from_bytes(b"\xff\xff\xff\xff\0\0\0\0" * lanes, "little")
    first = second = first_odd = second_odd = 0
    counted = chain(range(_HEAD_WORDS), range(_HEAD_WORDS + _SKIPPED_WORDS, words_each))
    for step, at in enumerate(counted, start=1):
        column = int.from_bytes(_little(words[at::words_each]), "little")
        first, second = second, first + second + (column & cut)
        first_odd, second_odd = second_odd, first_odd + second_odd + (column >> 32 & cut)
        if step % _STEPS == 0:
            first, second = first & cut, second & cut
            first_odd, second_odd = first_odd & cut, second_odd & cut
    firsts = _lanes(first & cut | (first_odd & cut) << 32, frames)
    seconds = _lanes(second & cut | (second_odd & cut) << 32, frames)
    yield from zip(firsts, seconds, strict=True)


def _after(words: array[int], before: Sums) -> Sums:
    first, second = before
    pairs = iter(words)
    for one, other in zip(pairs, pairs, strict=True):
        first = first + second + one & _WORD
        second = second + first + other & _WORD
    return first, second


def _fibonacci(steps: int) -> tuple[int, int, int]:
    """The numbers before, at and after this place, as far as a checksum sees them."""
    before, here = 1, 0
    for _ in range(steps):
        before, here = here, before + here & _WORD
    return before, here, before + here & _WORD


def _words(data: bytes, big: bool) -> array[int]:
    words = array("I", data)
    if big != (sys.byteorder == "big"):
        words.byteswap()
    return words


def _little(words: array[int]) -> bytes:
    if sys.byteorder == "big":
        words.byteswap()
    return words.tobytes()


def _lanes(sums: int, count: int) -> array[int]:
    return _words(sums.to_bytes((count + 1) // 2 * 8, "little"), False)[:count]
