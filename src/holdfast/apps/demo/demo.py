"""`holdfast demo`: the store at work, in less than a minute, on real files and real processes.

Two peers work apart and converge when their logs meet; a claim is superseded, with a warning; a
process is killed in the middle of its writes and loses nothing that it was promised; a database
is wrecked, restored from a backup, and gets back from its peer what the backup did not have. They
share a mesh through a broker, which is killed, and another one with nothing between them. Then
Spark reads the logs of both into a lake.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from holdfast.apps.demo import bus, delivery, pipeline
from holdfast.node.library.node import Mesh, Node, open_node
from holdfast.node.recovery.backup import backup, restore
from holdfast.rules.bodies import FileShare, decode_trusted_body
from holdfast.rules.envelope import decode_trusted
from holdfast.rules.errors import HoldfastError
from holdfast.rules.rows import Entry
from holdfast.rules.vectors import Model

Say = Callable[[str], None]

MESH = "team"
KILL_AFTER = 300
MODEL = Model(provider="demo", name="letters", dim=26)

WRITER = """
import sys, holdfast
with holdfast.open(sys.argv[1]) as node:
    state = node.mesh(sys.argv[2]).state
    for number in range(1_000_000):
        state.set(f"count-{number}", number)
        print(number, flush=True)
"""


def run(folder: Path | None = None, say: Say = print) -> Path:
    """Plays the whole demo in a folder (a new temporary one by default) and returns the folder."""
    folder = folder or Path(tempfile.mkdtemp(prefix="holdfast-demo-"))
    ana, bob = folder / "ana", folder / "bob"
    _apart(ana, bob, say)
    _together(ana, bob, say)
    _killed(ana, say)
    _restored(folder, ana, bob, say)
    delivery.play(folder, ana, bob, say)
    bus.play(ana, bob, say)
    has_lake = pipeline.play(folder / "lake", [ana, bob], MESH, say)
    say("\nLook around, with the commands that you would use:")
    program = sys.argv[0]
    say(f"  {program} --home {ana} status")
    say(f"  {program} --home {ana} conflict list")
    say(f"  {program} --home {bob} log tail")
    if has_lake:
        say(f"  {program} pipeline status --lake {folder / 'lake'}")
        say(f"  {program} pipeline query 'SHOW VIEWS' --lake {folder / 'lake'}")
    return folder


def _apart(ana: Path, bob: Path, say: Say) -> None:
    say("1. Two peers, each alone with its own home")
    with open_node(ana, peer="ana", create=True) as node:
        team = node.create_mesh(MESH)
        team.state.set("release", {"version": "1.4", "by": "ana"})
        team.memory.set("deploy", "run the smoke test first", tags=["how-to"])
        team.files.share("notes/plan.txt", b"ship on friday")
        team.files.share("data/big.bin", b"holdfast" * 20_000)
        for text in ("rotate the keys", "restart the pump", "restore a backup"):
            team.vectors.store(text, _letters(text), model=MODEL, content=text)
        task = team.tasks.create("rotate the keys").task
        team.tasks.claim(task)
        team.facts.append("plant:7", "temperature", 21.5)
        say(f"   ana wrote {node.log.head().offset} changes, and claimed a task")
        entries = list(node.log.range())
    with open_node(bob, peer="bob", create=True) as node:
        team = node.create_mesh(MESH)
        # Bob has heard of the task, but not that ana took it.
        node.apply(entry.raw for entry in entries if entry.op == "task.create")
        team.tasks.claim(task)
        team.state.set("release", {"version": "2.0", "by": "bob"})
        team.memory.set("deploy", "bob asks ana", tags=["how-to"])
        say(f"   bob wrote {node.log.head().offset - 1} changes, and claimed the same task")


def _together(ana: Path, bob: Path, say: Say) -> None:
    say("\n2. Their logs meet, twice and in any order")
    with open_node(ana) as one, open_node(bob) as other:
        for _ in range(2):
            _exchange(one, other)
            _exchange(other, one)
        _say_if_equal(one, other, say)
        release = one.mesh(MESH).state.entry("release")
        assert release is not None
        say(f"   release = {release.value} (stamp {release.lamport}@{release.peer}, the later one)")
        for conflict in one.conflicts():
            say(
                f"   kept in the ledger: {conflict.family} {_short(conflict.entity)} of "
                f"{conflict.loser.peer} lost: {conflict.reason}"
            )
        for node in (one, other):
            for warning in node.take_warnings():
                say(f"   {node.peer} is warned, once: {warning.type}, {warning.by_peer} was first")
        best = one.mesh(MESH).vectors.search(_letters("restoring backups"), model=MODEL, limit=1)
        say(f"   nearest to 'restoring backups': {best[0].content!r}")


def _killed(ana: Path, say: Say) -> None:
    say(f"\n3. A process is killed with -9 after {KILL_AFTER} acknowledged writes")
    child = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(ana), MESH],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    acknowledged = -1
    with child:
        assert child.stdout is not None
        for line in child.stdout:
            acknowledged = int(line)
            if acknowledged == KILL_AFTER:
                child.send_signal(signal.SIGKILL)
    with open_node(ana) as node:
        state = node.mesh(MESH).state
        missing = [n for n in range(acknowledged + 1) if state.get(f"count-{n}") != n]
        say("   the next start noticed, and checked the database")
        say(f"   acknowledged {acknowledged + 1}, found again {acknowledged + 1 - len(missing)}")
        if missing:
            raise SystemExit(f"lost {missing}: this must not happen; please report it")


def _restored(folder: Path, ana: Path, bob: Path, say: Say) -> None:
    say("\n4. A backup, more work, and a wrecked database")
    with open_node(ana) as one, open_node(bob) as other:
        report = backup(one, folder / "backup")
        say(f"   backup of the database and {report.blobs} blobs, up to offset {report.head}")
        one.mesh(MESH).state.set("after", "written after the backup")
        _exchange(one, other)
    _wreck(ana / "data.db")
    try:
        with open_node(ana) as node:
            list(node.mesh(MESH).state.list())
    except HoldfastError as error:
        say(f"   {error.code}: {error.message[:70]}…")
    restore(folder / "backup", ana, force=True)
    with open_node(ana) as one, open_node(bob) as other:
        epoch = one.log.head().epoch
        lost = one.mesh(MESH).state.get("after")
        say(f"   restored; the log goes on in epoch {epoch}; 'after' is {lost!r}")
        _exchange(other, one)
        _exchange(one, other)
        say(f"   and bob gives it back: {one.mesh(MESH).state.get('after')!r}")
        _say_if_equal(one, other, say)


def _exchange(source: Node, target: Node) -> None:
    """All that one has, to the other: content first, then the changes that name it."""
    held = {row.sha256 for row in target.mesh(MESH).files.list() if row.here}
    entries = list(source.log.range())
    for entry in entries:
        share = _blob_of(entry)
        if share is not None and share.sha256.hex() not in held:
            with source.open_blob(share.sha256.hex()) as content:
                target.receive_blob(content)
    for result in target.apply(entry.raw for entry in entries):
        if result.error is not None:
            raise result.error


def _blob_of(entry: Entry) -> FileShare | None:
    if entry.op != "file.share":
        return None
    body = decode_trusted_body(decode_trusted(entry.raw))
    return body if isinstance(body, FileShare) and body.content is None else None


def _say_if_equal(one: Node, other: Node, say: Say) -> None:
    first, second = (_everything(node.mesh(MESH)) for node in (one, other))
    if first != second:
        raise SystemExit("the two homes differ: this must not happen; please report it")
    say(f"   both hold the same {sum(len(rows) for rows in first.values())} rows")


def _everything(mesh: Mesh) -> dict[str, list[Any]]:
    return {
        "state": list(mesh.state.list()),
        "memory": list(mesh.memory.list(scope="all")),
        "files": [(row.path, row.sha256, row.lamport) for row in mesh.files.list()],
        "tasks": [(row.task, row.status, row.claimed_by) for row in mesh.tasks.list()],
    }


def _wreck(database: Path) -> None:
    """Overwrites the middle third, as a failing disk might."""
    size = database.stat().st_size
    with database.open("r+b") as file:
        file.seek(size // 3)
        file.write(os.urandom(size // 3))


def _letters(text: str) -> list[float]:
    """A model that fits on a line: how often each letter occurs."""
    return [float(text.count(chr(ord("a") + n))) for n in range(26)]


def _short(name: str) -> str:
    return name if len(name) <= 12 else f"{name[:8]}…"
