"""The entry point: the quick path first, then the full command; every way out has its exit code.

    0 done   1 failed   2 usage   3 no daemon   4 not found   5 conflict   6 no quorum
    7 not allowed   124 outcome unknown (retry with the same id)   130 interrupted
    141 nobody reads the output any more   143 ended by SIGTERM

Every command pays for what is imported here, the quickest too.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

COMPLETE = "_HOLDFAST_COMPLETE"
"""By this variable a shell asks what to offer."""
_own_process = False
INTERRUPTED = 130
NO_READER = 141
TERMINATED = 143


def main(argv: list[str] | None = None) -> int:
    """Runs one command and returns its exit code. Without `argv` the process is the command's own,
    and ends with it.
    """
    global _own_process
    _own_process = argv is None
    words = sys.argv[1:] if argv is None else argv
    _open_streams()
    try:
        code = _run_quickly(words)
        if code is not None and _own_process:
            # Nothing is open any more, and Python would look for what to take apart: a tenth of
            # what the command has cost.
            sys.stdout.flush()
            os._exit(code)
        code = _run(words) if code is None else code
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        _drop_output()
        return NO_READER
    except KeyboardInterrupt:
        return INTERRUPTED
    except OSError as error:
        # The command has dealt with its own by now: it is stdout that failed.
        _drop_output()
        from holdfast.apps.cli import output

        what = f"the answer could not be written: {error.strerror}"
        output.failure("no_output", what, "the command may have done its work", "--json" in words)
        return 1


def _run_quickly(words: list[str]) -> int | None:
    """What needs little: its exit code, or None where the full command must do the work."""
    if COMPLETE in os.environ:
        from holdfast.apps.cli.completion import shells

        if (answered := shells.answer(os.environ)) is not None:
            return answered
    if words[1:2] == ["set"]:
        from holdfast.apps.cli.quick import writes

        with without_collecting():
            return writes.run(words)
    from holdfast.apps.cli.quick import reads

    return reads.run(words)


def _run(words: list[str]) -> int:
    end_quickly()
    with without_collecting():
        from holdfast.apps.cli.app import run

    with closed_at_sigterm():
        return run(words)


@contextmanager
def without_collecting() -> Iterator[None]:
    """For imports: they make thousands of objects, of which none is garbage. In a process of our
    own the collector leaves them alone for good; else its next round would look through them all.
    """
    import gc

    gc.disable()
    try:
        yield
    finally:
        if _own_process:
            gc.freeze()
        gc.enable()


def end_quickly() -> None:
    """At its end Python looks through all that was imported for cycles to take apart, which costs
    more than most commands do. What is closed at the end is closed before.
    """
    import atexit
    import gc

    atexit.unregister(gc.freeze)
    atexit.register(gc.freeze)


@contextmanager
def closed_at_sigterm() -> Iterator[None]:
    """SIGTERM ends a command as Ctrl-C does: what it has open is closed first.

    Commands that serve have their own way to end, and set it up themselves.
    """
    import signal
    import threading

    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, frame: object) -> None:
        sys.exit(TERMINATED)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _open_streams() -> None:
    """A process may be started with its output closed; it works all the same."""
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - for as long as the process lives
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115


def _drop_output() -> None:
    """Python flushes stdout once more at its end and would complain about the closed pipe."""
    try:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
    except (OSError, ValueError):
        return  # stdout is no real file here: there is nothing that could complain
