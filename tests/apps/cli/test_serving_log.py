"""What a process that serves says: a node's daemon, a broker, and whatever they are made of."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from holdfast.rules.keys import token_text
from holdfast.rules.limits import TOKEN_BYTES
from support.cli import Cli

TOKEN = token_text(bytes(range(TOKEN_BYTES)))
PATIENCE_S = 60


def shaped(said: bytes) -> list[dict[str, Any]]:
    """The lines, each of the one shape."""
    lines = [json.loads(line) for line in said.splitlines()]
    for line in lines:
        assert list(line)[:3] == ["time", "level", "event"], line
        assert datetime.fromisoformat(line["time"]).tzinfo is not None
        assert line["level"] in ("debug", "info", "warning", "error")
    return lines


@pytest.mark.parametrize("what", ["node", "broker"])
@pytest.mark.parametrize("as_json", [True, False])
def test_U4_all_that_a_daemon_says_has_one_shape(cli: Cli, what: str, as_json: bool) -> None:
    if what == "node":
        left = "import os, sys, holdfast; holdfast.open(sys.argv[1]); os._exit(0)"
        subprocess.run([sys.executable, "-c", left, str(cli.home)], check=True)
        words = ["up", "--no-socket", "--tcp=127.0.0.1:0"]
    else:
        words = ["broker", "serve", f"--store={cli.home.parent / 'hub'}", "--tcp=127.0.0.1:0"]
    with cli.start(*words, *(["--json"] if as_json else [])) as running:
        assert running.stdout is not None
        assert running.stderr is not None
        said = b""
        events = running.stdout if as_json else running.stderr
        while b'"ready"' not in said:
            line = events.readline()
            assert line
            said += line
        running.send_signal(signal.SIGTERM)
        assert running.wait(PATIENCE_S) == 0
        said += events.read()
        other = running.stderr.read() if as_json else running.stdout.read()
    lines = shaped(said)
    logged = shaped(other) if as_json else [line for line in lines if line["event"] == "log"]
    happened = [line["event"] for line in lines if line["event"] != "log"]
    assert happened == ["ready", "stopping", "stopped"]
    assert as_json or other == b"", "a daemon has no answer, so nothing is data"
    if what == "node":
        assert ["not closed cleanly" in line["message"] for line in logged] == [True]
        assert logged[0]["level"] == "warning"


def test_U4_a_terminal_gets_text_and_the_level_is_heeded(cli: Cli) -> None:
    said = cli.on_a_terminal("up", "--ttl=1ms").out.splitlines()
    assert said[0].startswith("serving ")
    assert [line.partition(" ")[2] for line in said[-2:]] == ["info: stopping", "info: stopped"]
    assert cli.on_a_terminal("up", "--ttl=1ms", "--log-level=warning").out == ""
    env = {"HOLDFAST_LOG_FORMAT": "json", "HOLDFAST_LOG_LEVEL": "debug"}
    assert shaped(cli.on_a_terminal("up", "--ttl=1ms", env=env).out.encode())


SAYING = """
import logging, sys, threading, warnings
from holdfast.apps.cli.serving_log import ServingLog
with ServingLog("info", None, as_json=False).logging():
    warnings.simplefilter("always")
    logging.getLogger("uvicorn.error").critical("a task has %s", "died")
    logging.getLogger("asyncio").error("never %s %s", "retrieved")
    logging.getLogger("holdfast.bus").info("%s takes part", "bob")
    logging.getLogger("holdfast").debug("not at this level")
    logging.getLogger("elsewhere").info("chatter of others")
    warnings.warn(f"{sys.argv[1]} is old", DeprecationWarning)
    failing = threading.Thread(target=int, args=("password=s3cr3t",), name="worker")
    failing.start()
    failing.join()
"""


def test_U4_what_libraries_warnings_and_threads_say_is_of_the_same_shape_without_secrets() -> None:
    done = subprocess.run([sys.executable, "-c", SAYING, TOKEN], capture_output=True, check=True)
    lines = shaped(done.stderr)
    assert [(line["logger"], line["level"]) for line in lines] == [
        ("uvicorn.error", "error"),
        ("asyncio", "error"),
        ("holdfast.bus", "info"),
        ("py.warnings", "warning"),
        ("holdfast", "error"),
    ]
    messages = [line["message"] for line in lines]
    assert messages[0] == "a task has died"
    assert "never %s %s" in messages[1]
    assert TOKEN not in messages[3]
    assert "DeprecationWarning: hf_…" in messages[3]
    assert messages[4].startswith("worker has ended with an error\nTraceback")
    assert "s3cr3t" not in messages[4]


def test_U4_a_reader_that_went_away_does_not_end_what_serves(tmp_path: Path) -> None:
    code = (
        "import logging, os\n"
        "from holdfast.apps.cli.serving_log import ServingLog\n"
        "log = ServingLog('info', None, as_json=False)\n"
        "with log.logging():\n"
        "    logging.getLogger('holdfast').warning('nobody reads this')\n"
        "os._exit(7)\n"
    )
    ours, theirs = os.pipe()
    os.close(ours)
    done = subprocess.run([sys.executable, "-c", code], stderr=theirs)
    os.close(theirs)
    assert done.returncode == 7
