"""Starting a daemon that outlives the command which started it.

The daemon is a process in a session of its own; its stdout and stderr go to `logs/daemon.log`. It
holds one end of a pipe. When it is ready it writes a document into the pipe; if it ends before, the
pipe closes empty.
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
    """Starts `holdfast` with these words and returns the document that it writes when it is ready.
    `environ` is for secrets, which must not stand on a command line.

    If it ends before it is ready, this prints its error and exits with its exit code.
    """
    log = paths.logs / "daemon.log"
    with disk_errors(f"open {log}"):
        make_folder(paths.logs)
        log_fd = os.open(log, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
    begun = os.lseek(log_fd, 0, os.SEEK_END)
    ours, theirs = os.pipe()
    try:
        child = subprocess.Popen(
            [sys.executable, "-m", "holdfast", *words, "--json"],
            env={**os.environ, **(environ or {}), READY_FD: str(theirs)},
            stdin=subprocess.DEVNULL,
            stdout=log_fd,
            stderr=log_fd,
            pass_fds=[theirs],
            start_new_session=True,
        )
        os.close(theirs)
        with open(ours, "rb") as pipe:
            ready = pipe.read()
        if not ready:
            _print_error(os.pread(log_fd, 1 << 20, begun), as_json)
            raise click.exceptions.Exit(child.wait() or 1)
    finally:
        os.close(log_fd)
    # It goes on without us; the process that inherits it will wait for it.
    child.returncode = 0
    document: dict[str, Any] = msgspec.json.decode(ready)
    return document


def tell_ready(document: dict[str, Any]) -> None:
    """Tells the command that started this daemon detached, if one did."""
    fd = os.environ.pop(READY_FD, "")
    if fd:
        with open(int(fd), "wb") as pipe:
            pipe.write(msgspec.json.encode(document))


def _print_error(logged: bytes, as_json: bool) -> None:
    """Prints the error that the daemon ended with in our own form; else all that it logged."""
    for line in reversed(logged.splitlines()):
        try:
            error = msgspec.json.decode(line)["error"]
            output.failure(error["code"], error["message"], error["hint"], as_json)
            return
        except (msgspec.DecodeError, KeyError, TypeError):
            continue
    output.talk(logged.decode(errors="replace").rstrip())
