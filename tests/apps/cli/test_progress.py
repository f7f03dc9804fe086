"""Long commands say how far they are, and what an interruption leaves."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import holdfast
from holdfast.apps.cli.progress import Progress, left, line
from holdfast.apps.cli.session import CommandSession
from holdfast.rules.limits import CHUNK_ROWS
from support.cli import Cli

MIB = 2**20


@pytest.mark.parametrize(
    ("shown", "said"),
    [
        (
            line("lines:", 12_000, 48_000, 9_000, 1.0),
            "lines: 12,000 of 48,000 (25 %), 9,000/s, 4 s left",
        ),
        (line("lines:", 7, None, 7, 1.0), "lines: 7, 7/s"),
        (
            line("copied", 5 * MIB, 20 * MIB, 5 * MIB, 2.0, in_bytes=True),
            "copied 5 MiB of 20 MiB (25 %), 2.5 MiB/s, 6 s left",
        ),
        (line("lines:", 1, 2, 1, 0.1), "lines: 1 of 2 (50 %)"),  # too early for a rate
        (line("waiting:", 5, None, -3, 9.0), "waiting: 5"),  # it falls
        (line("moved", 1, 61, 1, 20.0), "moved 1 of 61 (1 %), 3.0 a minute, 20 min left"),
        (line("moved", 9, 9, 9, 3.0), "moved 9 of 9 (100 %), 3/s"),
        (line("empty", 0, 0, 0, 3.0), "empty 0"),
    ],
)
def test_U2_a_line_says_how_far_how_fast_and_how_long(shown: str, said: str) -> None:
    assert shown == said


def test_U2_a_time_that_is_left_is_coarse() -> None:
    assert [left(ms) for ms in (1, 1500, 99_000, 100_000, 6_000_000)] == [
        *("1 s", "2 s", "99 s", "2 min", "2 h"),
    ]


@pytest.fixture
def full(cli: Cli) -> Cli:
    with holdfast.open(cli.home, sync="normal") as node:
        team = node.mesh("team")
        for at in range(CHUNK_ROWS + 20):
            team.state.set(f"k{at}", at)
        team.files.share("large", os.urandom(200_000))
    return cli


@pytest.mark.parametrize("words", ["export @", "backup @", "doctor --full"])
def test_U2_progress_is_shown_on_a_terminal_and_nowhere_else(
    full: Cli, tmp_path: Path, words: str
) -> None:
    what = {"export": "exported lines: ", "backup": "copied ", "doctor": "looking at: database "}
    begin = what[words.split()[0]]
    shown = full.on_a_terminal(*words.replace("@", str(tmp_path / "a")).split(), columns=60).out
    drawn = [part for part in shown.split("\r\x1b[K") if part.startswith(begin)]
    assert drawn
    assert max(len(part.splitlines()[0]) for part in drawn) < 60
    piped = full.process(*words.replace("@", str(tmp_path / "b")).split())
    assert "\r" not in piped.err
    assert begin not in piped.err
    in_json = full.on_a_terminal(*words.replace("@", str(tmp_path / "c")).split(), "--json")
    assert "\x1b[K" not in in_json.out


@pytest.mark.parametrize(
    ("words", "leaves"),
    [
        ("export new.jsonl", "new.jsonl appears when it is whole"),
        ("export", "a part of the export"),
        ("backup new", "new appears when it is whole"),
        ("import there.jsonl --home other", "the same command goes on from there"),
        ("import there.jsonl --log --home other", "the same command goes on from there"),
        ("restore there --home fresh", "wholly restored"),
        ("doctor --full", "nothing was changed"),
    ],
)
def test_U2_an_interruption_says_what_it_leaves_and_the_same_command_then_works(
    full: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str, leaves: str
) -> None:
    monkeypatch.chdir(tmp_path)
    full("export", "there.jsonl")
    full("backup", "there")
    full("init", "--peer", "bo", "--mesh", "team", "--home", "other")

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Progress, "to", interrupt)
        patched.setattr(Progress, "step", interrupt)
        stopped = full(*words.split(), code=130)
    assert f"interrupted: {leaves}" in stopped.err or leaves in stopped.err
    assert stopped.err.count("interrupted: ") == 1
    assert not (tmp_path / "new.jsonl").exists()
    assert not (tmp_path / "new").exists()
    full(*words.split())
    for home in ("other", "fresh"):
        if home in words:
            assert len(full("state", "list", "--home", home, "--json").json) == CHUNK_ROWS + 20


def test_U2_work_that_goes_on_does_not_count_what_was_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, written = [0.0], list[str]()
    monkeypatch.setattr("holdfast.apps.cli.progress.monotonic", lambda: now[0])
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setattr(Progress, "_write", lambda self, text: written.append(text))
    monkeypatch.setenv("COLUMNS", "100")
    with Progress(CommandSession(), "lines:") as progress:
        progress.to(1_000_000, 1_000_200)
        now[0] = 1.0
        progress.to(1_000_100, 1_000_200)
        now[0] = 1.05
        progress.to(1_000_105, 1_000_200)  # too soon after the last one to be written
    assert [text.removeprefix("\r\x1b[K") for text in written] == [
        "lines: 1,000,000 of 1,000,200 (99 %)",
        "lines: 1,000,100 of 1,000,200 (99 %), 100/s, 1 s left",
        "",
    ]
