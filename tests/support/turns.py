"""In which order tests run, so that no worker ends alone on a long one.

pytest-xdist (`--dist=worksteal`) cuts the list into a stretch for each worker; whoever is through
takes half of what is left at the end of the longest stretch. So each stretch begins with what must
not come last and ends with what is short: the first with all that shares one Spark, which then few
workers need, on two cores one; the others with files whose tests take as long as hundreds of other
ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice
from typing import TypeVar

Test = TypeVar("Test")


def in_turns(
    tests: Iterable[Test],
    workers: int,
    *,
    shares_spark: Callable[[Test], bool],
    long_file: Callable[[Test], str | None],
) -> list[Test]:
    """All of the tests, ordered; `long_file` names the file of a test that takes long."""
    spark: list[Test] = []
    files: dict[str, list[Test]] = {}
    short: list[Test] = []
    for test in tests:
        name = long_file(test)
        if shares_spark(test):
            spark.append(test)
        elif name is not None:
            files.setdefault(name, []).append(test)
        else:
            short.append(test)
    heads = [spark, *([] for _ in range(workers - 1))]
    for number, file in enumerate(files.values()):
        heads[number % max(1, workers - 1) - max(1, workers - 1)].extend(file)
    left = len(spark) + sum(map(len, files.values())) + len(short)
    rest = iter(short)
    ordered: list[Test] = []
    for number, head in enumerate(heads):
        size = left // (workers - number)  # as pytest-xdist cuts it
        left -= size
        ordered += [*head, *islice(rest, max(0, size - len(head)))]
    return [*ordered, *rest]
