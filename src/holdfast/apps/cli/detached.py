"""Starting a daemon that outlives the command which started it.

The daemon is a process of its own session whose talk goes to `logs/daemon.log`. It holds one end of
a pipe: through it come the words of its being ready, or its end.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final

import click
import msgspec

from holdfast.apps.cli import output
from holdfast.storage.files.durable import disk_errors, make_folder
from holdfast.storage.files.home import HomePaths

READY_FD: Final = "HOLDFAST_READY_FD"


def start(
    paths: HomePaths,
    words: Sequence[str],
    *,
    as_json: bool,
    environ: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Starts `holdfast` with these words; returns what it says when it is ready. `environ` is for
    what must not stand on a command line.

    If it does not get that far, what went wrong is said here and its exit code is ours.
    """
    log = paths.logs / "daemon.log"
    with disk_errors(f"open {log}"):
        make_folder(paths.logs)
        talk = os.open(log, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
    begun = os.lseek(talk, 0, os.SEEK_END)
    ours, theirs = os.pipe()
    try:
        child = subprocess.Popen(
            [sys.executable, "-m", "holdfast", *words, "--json"],
            env={**os.environ, **(environ or {}), READY_FD: str(theirs)},
            stdin=subprocess.DEVNULL,
            stdout=talk,
            stderr=talk,
            pass_fds=[theirs],
            start_new_session=True,
        )
        os.close(theirs)
        with open(ours, "rb") as ears:
            said = ears.read()
        if not said:
            _say_why(os.pread(talk, 1 << 20, begun), as_json)
            raise click.exceptions.Exit(child.wait() or 1)
    finally:
        os.close(talk)
    # It goes on without us. To wait for it is then the business of whoever inherits it.
    child.returncode = 0
    document: dict[str, Any] = msgspec.json.decode(said)
    return document


def tell_ready(document: dict[str, Any]) -> None:
    """Tells whoever started this daemon detached, if anybody did."""
    fd = os.environ.pop(READY_FD, "")
    if fd:
        with open(int(fd), "wb") as mouth:
            mouth.write(msgspec.json.encode(document))


def _say_why(said: bytes, as_json: bool) -> None:
    """The error that the daemon ended with, in our own words; else all that it said."""
    for line in reversed(said.splitlines()):
        try:
            error = msgspec.json.decode(line)["error"]
            output.failure(error["code"], error["message"], error["hint"], as_json)
            return
        except (msgspec.DecodeError, KeyError, TypeError):
            continue
    output.talk(said.decode(errors="replace").rstrip())
