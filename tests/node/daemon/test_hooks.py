"""Commands of the operator that the daemon runs for events."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from holdfast.node.daemon.hooks import EventHooks, HookRunner
from holdfast.node.settings import HOOK_EVENTS, Settings
from holdfast.node.watching.log_watch import LogWatch
from holdfast.rules.errors import BadInput
from holdfast.rules.limits import NEWS_KEPT_MAX
from support.waiting import until

ABOUT = {"HOLDFAST_HOME": "/home/of/ana", "HOLDFAST_PEER": "ana"}

NOTE = """
import json, os, sys
with open(sys.argv[1], "a") as file:
    print(json.dumps({"env": dict(os.environ), "said": json.load(sys.stdin)}), file=file)
"""

NEVER_ENDS = """
import os, signal, sys, time
if len(sys.argv) > 2:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork() == 0:  # a process of the hook's own, which holds its pipes
    with open(sys.argv[1], "w") as file:
        print(os.getpid(), file=file)
    time.sleep(600)
time.sleep(600)
"""

LEAVES_ONE = """
import os, sys, time
print("the last words", file=sys.stderr, flush=True)
if os.fork() == 0:
    time.sleep(600)
with open(sys.argv[1], "w") as file:
    print(os.getpgid(0), file=file)
os._exit(3)
"""


def notes(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def run(runner: HookRunner, *command: str, document: bytes = b"{}") -> str:
    return asyncio.run(runner.run("disk", [sys.executable, "-c", *command], document, "a test"))


def test_D13_a_hook_gets_its_stated_environment_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_BROKER_TOKEN", "secret")
    monkeypatch.setenv("WANTED", "yes")
    monkeypatch.setenv("TZ", "UTC")
    runner = HookRunner(ABOUT, ["WANTED", "NOT_SET"])
    assert run(runner, NOTE, str(tmp_path / "told"), document=b'{"level":"high"}') == "done"
    (told,) = notes(tmp_path / "told")
    assert told["said"] == {"level": "high"}
    got = told["env"]
    assert got | ABOUT | {"HOLDFAST_EVENT": "disk", "WANTED": "yes", "TZ": "UTC"} == got
    assert got["PATH"] == os.environ["PATH"]
    assert "HOLDFAST_BROKER_TOKEN" not in got
    assert "secret" not in got.values()
    assert runner.runs == {("disk", "done"): 1}


@pytest.mark.parametrize("mode", [(), ("deaf",)])
def test_D13_a_hook_that_takes_too_long_ends_with_all_that_it_started(
    tmp_path: Path, mode: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.node.daemon.hooks.HOOK_GRACE_MS", 50)
    pid = tmp_path / "pid"

    async def main() -> None:
        runner = HookRunner(ABOUT)
        command = [sys.executable, "-c", NEVER_ENDS, str(pid), *mode]
        hook = asyncio.create_task(runner.run("disk", command, b"{}", "a test"))
        while not (pid.exists() and pid.read_text().endswith("\n")):
            await asyncio.sleep(0.005)
        assert is_running(int(pid.read_text()))
        runner.hurry()
        assert await hook == "late"

    asyncio.run(main())
    until(lambda: not is_running(int(pid.read_text())))


def test_D13_nobody_waits_for_what_a_hook_left_behind(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    group = tmp_path / "group"
    try:
        assert run(HookRunner(ABOUT), LEAVES_ONE, str(group)) == "failed"
        assert "the last words" in caplog.text
    finally:
        os.killpg(int(group.read_text()), signal.SIGKILL)


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def test_D13_hooks_run_for_events_that_are_in_no_log(tmp_path: Path) -> None:
    told = tmp_path / "told"

    async def main() -> int:
        watch = LogWatch(lambda: 0)
        watch.post("disk", {"level": "before"})
        await asyncio.sleep(0)
        note = [sys.executable, "-c", NOTE, str(told)]
        hooks = EventHooks(HookRunner(ABOUT), watch, {"disk": note, "link": note, "broker": []})
        for kind, document in (
            ("disk", {"level": "high"}),
            ("broker", {"name": "hub"}),
            ("link", {"name": "pull", "state": "stopped"}),
        ):
            watch.post(kind, document)
        task = asyncio.create_task(hooks.watch())
        while len(notes(told)) < 2:
            await asyncio.sleep(0.01)
        assert hooks.missed == 0
        for number in range(NEWS_KEPT_MAX + 3):
            watch.post("broker", {"name": str(number)})
        while not hooks.missed:
            await asyncio.sleep(0)
        watch.close()
        await task
        return hooks.missed

    assert asyncio.run(main()) == 3, "those that were gone before their turn are counted"
    assert [note["said"] for note in notes(told)] == [
        {"event": "disk", "level": "high"},
        {"event": "link", "name": "pull", "state": "stopped"},
    ]
    assert [note["env"]["HOLDFAST_EVENT"] for note in notes(told)] == ["disk", "link"]


def test_D13_every_event_can_have_its_hook() -> None:
    for event in HOOK_EVENTS:
        good: dict[str, Any] = {f"hook_{event}": ["run"]}
        bad: dict[str, Any] = {f"hook_{event}": [""]}
        assert Settings(**good).check().hook(event) == ["run"]
        with pytest.raises(BadInput, match=f"hook for {event}"):
            Settings(**bad).check()
