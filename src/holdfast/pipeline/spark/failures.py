"""What went wrong in a job, in one sentence.

Spark wraps a cause in the stack of every machine that it passed. A user wants the cause: the log
and the offset, the disk, the row. An error of Holdfast that was raised on an executor comes back as
text; its class and its message are found in that text again.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from holdfast.rules import errors
from holdfast.rules.errors import DiskFull, HoldfastError, JobFailed, Unreachable

_OURS: Final = re.compile(r"(?m)^(?:holdfast\.rules\.errors\.)(\w+): (.+)$")
_CAUSED: Final = re.compile(r"(?m)^Caused by: (?:[\w.$]+: )?(.+)$")
_PYTHON: Final = re.compile(r"(?m)^(\w[\w.]*(?:Error|Exception)\w*: .+)$")
_NOISE: Final = re.compile(r"^\[[\w.]+\] | SQLSTATE: \w+.*$")
_CHARS_MAX: Final = 500
SPARK_ERRORS: Final = (PySparkException, Py4JError)


@contextmanager
def spark_errors(what: str, *, passing: tuple[type[BaseException], ...] = ()) -> Iterator[None]:
    """Turns errors of Spark that are raised in the block into ours. `passing`: error classes that
    are left as they are, for the caller to handle.
    """
    try:
        yield
    except passing:
        raise
    except SPARK_ERRORS as error:
        raise failure(what, error) from error


def failure(what: str, error: BaseException) -> HoldfastError:
    """An error of Spark as one of ours."""
    text = str(error)
    ours = _ours(text)
    if ours is not None:
        return ours
    if "No space left on device" in text:
        return DiskFull(f"{what}: there is no room left for what Spark writes")
    if "Connection refused" in text and "Java" not in text:
        return Unreachable(f"{what}: Spark cannot be reached: {_cut(_first(text))}")
    return JobFailed(f"{what} failed: {_cut(cause(text))}")


def cause(text: str) -> str:
    """The innermost reason in what Spark says."""
    for pattern in (_PYTHON, _CAUSED):
        found = pattern.findall(text)
        if found:
            return _NOISE.sub("", str(found[-1])).strip()
    return _first(text)


def _ours(text: str) -> HoldfastError | None:
    """The error of ours that an executor has raised, if the text has one. A class that needs more
    than a message becomes JobFailed with the same message.
    """
    found = _OURS.findall(text)
    if not found:
        return None
    name, message = found[-1]
    kind = getattr(errors, name, None)
    if isinstance(kind, type) and issubclass(kind, HoldfastError):
        try:
            return kind(message.strip())
        except TypeError:
            return JobFailed(message.strip())
    return JobFailed(f"{name}: {message.strip()}")


def _first(text: str) -> str:
    lines = [line for line in text.strip().splitlines() if line.strip()]
    return _NOISE.sub("", lines[0]).strip() if lines else "it does not say why"


def _cut(text: str) -> str:
    return text if len(text) <= _CHARS_MAX else f"{text[: _CHARS_MAX - 1]}…"
