"""`holdfast demo` as a process, from beginning to end, and broken off in the middle."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from shlex import split
from xml.etree import ElementTree

import pytest

from holdfast.apps.demo import demo
from holdfast.apps.demo.chapters import NAMES, DemoChapter
from holdfast.apps.demo.screen import COLUMNS, DemoScreen, plain
from holdfast.apps.demo.stage import DemoStage
from holdfast.rules.errors import DemoFailed
from support.small_disk import mounted
from support.waiting import until

PATIENCE_S = 300
CLAIMS = 24


def start(folder: Path, *words: str, env: Mapping[str, str] = {}) -> subprocess.Popen[bytes]:
    """The demo, whose temporary files are in this folder."""
    return subprocess.Popen(
        [sys.executable, "-m", "holdfast", "demo", *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "TMPDIR": str(folder), **env},
        start_new_session=True,
    )


def processes_of(folder: Path) -> list[str]:
    """The command lines of all processes that name something in the folder."""
    found = []
    for place in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = place.read_bytes().decode(errors="replace")
        except OSError:
            continue  # it has ended meanwhile
        if str(folder) in words:
            found.append(words.replace("\0", " "))
    return found


@pytest.mark.timeout(PATIENCE_S + 60)
def test_U6_the_whole_demo_checks_what_it_claims_and_ends_with_what_can_be_pasted(
    tmp_path: Path,
) -> None:
    recording = tmp_path / "demo.cast"
    with start(tmp_path, "--record", str(recording)) as process:
        out, err = process.communicate(timeout=PATIENCE_S)
    text = out.decode()
    assert (process.returncode, err.decode()) == (0, "")
    told, _, next_ = text.partition("Look around")
    assert told.count("  ✓ ") == CLAIMS, text
    assert f"Claims checked: {CLAIMS}; all of them hold." in told
    assert "left out" not in told
    assert "\x1b" not in text, "a pipe gets plain text"
    assert max(map(len, told.splitlines())) <= COLUMNS
    for number, name in enumerate(NAMES, start=1):
        assert any(
            line.startswith(f"{number}/{len(NAMES)}  ") and line.endswith(f" {name}")
            for line in told.splitlines()
        ), name
    assert processes_of(tmp_path) == []
    _check_recording(recording, told)
    commands = [line.strip() for line in next_.splitlines() if line.startswith("    ")]
    for line in commands[:2]:
        _, *words = split(line)
        shown = subprocess.run(
            [sys.executable, "-m", "holdfast", *words], capture_output=True, check=True
        )
        assert shown.stdout, line
    assert "SHOW VIEWS" in commands[2]
    assert Path(split(commands[2])[-1]).is_dir(), "the lake is there"


def _check_recording(file: Path, told: str) -> None:
    header, *events = map(json.loads, file.read_text().splitlines())
    assert (header["version"], header["width"]) == (2, COLUMNS)
    times = [at for at, _, _ in events]
    assert times == sorted(times)
    assert {kind for _, kind, _ in events} == {"o"}
    assert "".join(text for _, _, text in events).count("✓\x1b[0m ") == CLAIMS
    pictures = sorted(file.parent.glob("demo*.svg"), key=lambda one: one.stem)
    assert [one.stem for one in pictures] == ["demo", *sorted(f"demo-{name}" for name in NAMES)]
    for picture in pictures:
        svg = picture.read_text()
        ElementTree.fromstring(svg)
        assert len(svg) < 60_000
        assert svg.count("http") == 1, "the namespace, and no other host"
    shown = "".join(ElementTree.fromstring(pictures[0].read_text()).itertext()).replace("\xa0", " ")
    for line in told.partition("Claims checked")[0].splitlines():
        assert line.strip() in shown


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_U6_whoever_ends_the_demo_in_the_middle_finds_no_process_and_no_folder(
    tmp_path: Path, number: signal.Signals
) -> None:
    with start(tmp_path, "broker") as process:
        assert process.stdout is not None
        while b"the broker is killed" not in (line := process.stdout.readline()):
            assert line, process.stderr and process.stderr.read().decode()
        assert processes_of(tmp_path), "the daemons run"
        process.send_signal(number)
        process.wait(PATIENCE_S)
    expected = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGKILL: -signal.SIGKILL}
    assert process.returncode == expected[number]
    # After SIGKILL it is the guard that tidies up.
    until(lambda: processes_of(tmp_path) == [] and list(tmp_path.iterdir()) == [])


def test_U6_a_claim_that_does_not_hold_ends_the_demo_and_what_failed_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def play(stage: DemoStage) -> None:
        stage.laptop("ana")
        stage.prove(True, "one and one are two")
        stage.prove(1 + 1 == 3, "one and one are three", "they are 2")

    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setattr(DemoChapter, "play", property(lambda chapter: play))
    shown: list[str] = []
    with pytest.raises(DemoFailed, match="one and one are three"):
        demo.run(shown.append, chapters=[DemoChapter("sums", "Sums", "sums")])
    assert "  ✓ one and one are two\n" in shown
    assert shown[-1].startswith("  ✗ demo_failed")
    (kept,) = tmp_path.iterdir()
    assert (kept / "ana" / "data.db").exists()
    assert processes_of(tmp_path) == []


def test_U6_without_spark_the_demo_leaves_its_lake_out(tmp_path: Path) -> None:
    hidden, folder = tmp_path / "hidden", tmp_path / "folder"
    (hidden / "pyspark").mkdir(parents=True)
    (hidden / "pyspark" / "__init__.py").write_text("raise ImportError('hidden')")
    folder.mkdir()
    with start(folder, "lake", env={"PYTHONPATH": str(hidden)}) as process:
        out, err = process.communicate(timeout=PATIENCE_S)
    text = " ".join(out.decode().split())
    assert process.returncode == 0, err.decode()
    assert "left out: the pipeline needs packages that are not here: hidden" in text
    assert "pip install 'holdfast[spark]'" in text
    assert "pipeline query" not in text


def test_U6_a_terminal_gets_colour_and_a_line_that_is_too_long_goes_on_below() -> None:
    shown: list[str] = []
    screen = DemoScreen(shown.append, in_colour=True, reading_s=0)
    screen.proved("so " * 40)
    first, second = shown
    assert first.startswith("  \x1b[32m✓\x1b[0m so so")
    assert second.startswith("    so")
    assert max(len(plain(line)) for line in shown) <= COLUMNS


@pytest.mark.parametrize("words", [["nonsense"], ["--folder", "."]])
def test_U6_what_the_demo_cannot_play_or_would_write_over_is_refused(
    tmp_path: Path, words: list[str]
) -> None:
    (tmp_path / "mine").write_text("precious")
    done = subprocess.run(
        [sys.executable, "-m", "holdfast", "demo", *words], cwd=tmp_path, capture_output=True
    )
    assert done.returncode == 2
    assert [place.name for place in tmp_path.iterdir()] == ["mine"]


def test_U6_a_full_disk_is_no_broken_promise(tmp_path: Path) -> None:
    with mounted(tmp_path, 2_000) as disk:
        with start(tmp_path, "killed", "--fast", "--folder", str(disk / "demo")) as process:
            _, err = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 1
        assert b"is there room" in err
        assert b"report it" not in err
        assert b"Traceback" not in err
