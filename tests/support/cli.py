"""Running the command in this process: quick, with its output and its exit code.

Everything goes through `main`, as it does from a shell: the quick path, the errors, the exit codes.
"""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
import termios
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from holdfast.apps.cli.app import run
from holdfast.apps.cli.main import main

TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")
TIME_MASK = "<the time of the change>"
MS = re.compile(r'(_at":)\d{13}')
ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}")
ID_MASK = "<the id of some envelope, 36 chars.>"
assert len(TIME_MASK) == 24, "as long as a time, so that columns keep their place"
assert len(ID_MASK) == 36


@dataclass(frozen=True)
class Outcome:
    """What a command left behind."""

    code: int
    raw: bytes
    err: str

    @property
    def out(self) -> str:
        return self.raw.decode()

    @property
    def json(self) -> Any:
        """The one document on stdout."""
        return json.loads(self.raw)

    @property
    def error(self) -> dict[str, Any]:
        """The error document on stderr, and nothing on stdout."""
        assert self.raw == b"", self.raw
        said = json.loads(self.err.splitlines()[-1])
        assert list(said) == ["error"]
        error: dict[str, Any] = said["error"]
        return error

    @property
    def masked(self) -> str:
        """stdout without what differs from run to run."""
        return ID.sub(ID_MASK, MS.sub(r"\g<1>0", TIME.sub(TIME_MASK, self.out)))


class Cli:
    """The command, on one home."""

    def __init__(self, home: Path) -> None:
        self.home = home

    def __call__(
        self,
        *words: str,
        stdin: str | bytes = b"",
        code: int | None = 0,
        env: Mapping[str, str] | None = None,
        full: bool = False,
    ) -> Outcome:
        """Runs it in this process; `code` is what it must exit with, None for anything.

        `full` leaves the quick path out.
        """
        given = {
            "HOLDFAST_HOME": str(self.home),
            "HOLDFAST_MESH": "",
            # No test here cuts the power.
            "HOLDFAST_STORE_SYNC": "normal",
            **(env or {}),
        }
        runner = CliRunner(env=given)
        with runner.isolation(input=stdin) as streams:
            exit_code = run(list(words)) if full else main(list(words))
            sys.stdout.flush()
            outcome = Outcome(exit_code, streams[0].getvalue(), streams[1].getvalue().decode())
        assert code is None or outcome.code == code, (outcome.code, outcome.out, outcome.err)
        return outcome

    def start(self, *words: str, **settings: Any) -> subprocess.Popen[bytes]:
        """Starts it as a process of its own."""
        # Nobody sits at the terminals of tests to leave a pager.
        given = {"HOLDFAST_HOME": str(self.home), "HOLDFAST_PAGER": "", **settings.pop("env", {})}
        env = {**os.environ, **given}
        streams = {
            "stdin": subprocess.DEVNULL,
            "stdout": subprocess.PIPE,
            "stderr": subprocess.PIPE,
        }
        return subprocess.Popen(
            [sys.executable, "-m", "holdfast", *words], env=env, **{**streams, **settings}
        )

    def on_a_terminal(
        self,
        *words: str,
        columns: int = 80,
        typed: str = "",
        code: int | None = 0,
        env: Mapping[str, str] | None = None,
    ) -> Outcome:
        """Runs it as a process whose three streams are a terminal; what it shows is `out`."""
        ours, theirs = pty.openpty()
        termios.tcsetwinsize(theirs, (24, columns))
        quiet = termios.tcgetattr(theirs)
        quiet[3] &= ~termios.ECHO
        termios.tcsetattr(theirs, termios.TCSANOW, quiet)
        given = {"TERM": "xterm-256color", "NO_COLOR": "", "COLUMNS": str(columns), **(env or {})}
        settings = {"stdin": theirs, "stdout": theirs, "stderr": theirs, "env": given}
        shown = b""
        try:
            with self.start(*words, **settings) as running:
                os.close(theirs)
                os.write(ours, typed.encode())
                while chunk := _read(ours):
                    shown += chunk
                exit_code = running.wait(60)
        finally:
            os.close(ours)
        outcome = Outcome(exit_code, shown.replace(b"\r\n", b"\n"), "")
        assert code is None or exit_code == code, (exit_code, outcome.out)
        return outcome

    def process(self, *words: str, **settings: Any) -> Outcome:
        """Runs it as a process of its own, to its end."""
        patience = settings.pop("patience", 60)
        with self.start(*words, **settings) as running:
            out, err = running.communicate(timeout=patience)
        return Outcome(running.returncode, out or b"", (err or b"").decode())


def _read(fd: int) -> bytes:
    try:
        return os.read(fd, 65536)
    except OSError:  # how Linux says that the other side of a terminal was closed
        return b""
