"""`holdfast broker serve --processes`, as a service manager and an operator see it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from support.postgres import name_for, server

pytestmark = pytest.mark.timeout(120)
PATIENCE_S = 60


@contextmanager
def serving(
    folder: Path, *words: str, environ: Mapping[str, str] | None = None
) -> Iterator[tuple[subprocess.Popen[bytes], dict[str, Any]]]:
    command = [sys.executable, "-m", "holdfast", "broker", "serve", "--json", "--store"]
    process = subprocess.Popen(
        [*command, str(folder), "--tcp", "127.0.0.1:0", *words],
        env={**os.environ, **(environ or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        yield process, json.loads(process.stdout.readline() or b"{}")
    finally:
        if process.poll() is None:
            process.kill()
        process.wait(PATIENCE_S)
        process.stdout.close()
        process.stderr.close()


def children(pid: int) -> list[int]:
    with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as listed:
        return [int(word) for word in listed.read().split()]


def test_D1_ready_is_told_once_when_all_processes_serve_and_a_signal_ends_them_all(
    tmp_path: Path,
) -> None:
    dsn = asyncio.run(server().database(name_for(tmp_path)))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        environ = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "HOLDFAST_BROKER_DSN": dsn}
        with serving(tmp_path / "hub", "--processes=2", environ=environ) as (process, told):
            assert told["event"] == "ready"
            assert (told["processes"], told["pid"]) == (2, process.pid)
            begun = children(process.pid)
            assert len(begun) == 2
            for pid in begun:
                shown = Path(f"/proc/{pid}/cmdline").read_bytes()
                assert dsn.encode() not in shown
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE_S) == 0
            assert not any(Path(f"/proc/{pid}").exists() for pid in begun)
        manager.setblocking(False)
        said = [manager.recv(4096) for _ in range(2)]
        assert said[0].startswith(b"READY=1\n")
        assert said[1] == b"STOPPING=1"
        with pytest.raises(BlockingIOError):
            manager.recv(4096)


def test_D1_ctrl_c_ends_all_and_is_told_by_the_exit_code(
    tmp_path: Path,
) -> None:
    dsn = asyncio.run(server().database(name_for(tmp_path)))
    environ = {"HOLDFAST_BROKER_DSN": dsn}
    with serving(tmp_path / "hub", "--processes=2", environ=environ) as (process, _):
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_S) == 130


def test_D1_several_processes_on_sqlite_are_refused_with_what_to_do(tmp_path: Path) -> None:
    with serving(tmp_path / "hub", "--processes=2") as (process, told):
        assert told == {}
        assert process.wait(PATIENCE_S) == 2
        assert process.stderr is not None
        said = process.stderr.read().decode()
        assert "one process serves a broker on SQLite" in said
        assert "--postgres" in said
