"""`holdfast demo --console`: all of it stays up, with a page to look at, until Ctrl-C."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import IO, Any

from support.waiting import until

PATIENCE_S = 120


def line_with(stream: IO[bytes], text: str) -> str:
    """The next line that has this in it."""
    seen = []
    while line := stream.readline().decode():
        seen.append(line)
        if text in line:
            return line.strip()
    raise AssertionError(f"{text!r} did not come, but {''.join(seen)}")


def test_U6_with_console_all_of_it_stays_and_enter_goes_on_with_the_story(tmp_path: Path) -> None:
    env = {name: value for name, value in os.environ.items() if name not in _SCREENS}
    process = subprocess.Popen(
        [sys.executable, "-m", "holdfast", "demo", "lan", "--console"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**env, "TMPDIR": str(tmp_path)},
        start_new_session=True,
    )
    try:
        _follow(process, tmp_path)
    finally:
        process.kill()
        process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130
    assert list(tmp_path.iterdir()) == []


def _follow(process: subprocess.Popen[bytes], folder: Path) -> None:
    assert process.stdin is not None
    assert process.stdout is not None
    page, _, code = line_with(process.stdout, "/login#code=").partition("#code=")
    assert code
    asked = urllib.request.Request(page, headers={"Accept": "text/html"})
    with urllib.request.urlopen(asked, timeout=PATIENCE_S) as answer:
        assert "text/html" in answer.headers["Content-Type"]
    line_with(process.stdout, "Enter: bob's laptop is closed")
    home = next(folder.glob("holdfast-demo-*")) / "ana"
    until(lambda: (state(home, "beats") or 0) > 0)
    process.stdin.write(b"\n")
    process.stdin.flush()
    line_with(process.stdout, "Enter: bob opens his laptop (2 of 2)")
    assert state(home, "gate") == "locked by ana"
    process.stdin.write(b"\n")
    process.stdin.close()
    process.stdin = None
    line_with(process.stdout, "It goes on until Ctrl-C")
    until(lambda: lost(home) in ("locked by ana", "left open by bob"))
    process.send_signal(signal.SIGINT)
    process.wait(PATIENCE_S)


_SCREENS = ("DISPLAY", "WAYLAND_DISPLAY")


def state(home: Path, key: str) -> Any:
    done = run("state", "get", key, "--home", str(home), "--json")
    return json.loads(done)["value"] if done else None


def lost(home: Path) -> Any:
    """What the newest conflict over the gate discarded."""
    rows = json.loads(run("conflict", "list", "--home", str(home), "--json"))
    return next((row["loser_body"]["value"] for row in rows if row["entity"] == "gate"), None)


def run(*words: str) -> bytes:
    return subprocess.run([sys.executable, "-m", "holdfast", *words], capture_output=True).stdout
