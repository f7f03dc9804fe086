"""Makes the fixtures of `test_made_by_earlier_code.py`. It ran once, with the code of version
0.1.0, and is kept to show what is in them; run by later code it would make fixtures of that code.

    PYTHONPATH=tests python -m compat.make_fixtures TARGET

It works in a folder of its own, PLACE, because a home remembers where its last backup went, and a
lake where its logs and its tables were. No machine has such a folder, so no test can do without
being told where things are now.

Who is who:

    ana     two meshes: `team`, shared at the broker `hub`, and `diary`, of her own
    ben     a member of `team`
    carl    a zone from which ana has pulled, and of which she had to set something aside
    cleo    a peer whose envelopes were applied to `diary` by hand
    dora    shares `garden` at the same broker; it was swept before, so it went there as a snapshot
"""

from __future__ import annotations

import io
import json
import lzma
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import holdfast
from compat.answers import (
    MODEL,
    OTHER_MODEL,
    address,
    ask,
    broker_answers,
    export_lines,
    home_answers,
    lake_answers,
    lake_query,
    run,
    serving,
    serving_broker,
    unpack,
)
from support.one_spark import one_spark

# An inner module of 0.1.0, found by its name so that nothing depends on where it is today.
FILTERS = "holdfast.rules.filters"
PLACE = Path("/nonexistent")
LEFT_OUT = ("ballast", "api.sock", "wake.sock", "daemon.lock", "daemon.log")
FAR_AWAY = b"content that never came " * 5000


def main(target: Path) -> None:
    target.mkdir(parents=True, exist_ok=True)
    PLACE.mkdir()
    os.chdir(PLACE)
    try:
        make_everything()
        for name in ("ana", "killed", "ben", "dora", "hub", "lake", "backup", "snapshot"):
            pack(Path(name), target / f"{name}.tar.xz")
        with lzma.open(target / "export.jsonl.xz", "wb", preset=9) as file:
            file.write(Path("export.jsonl").read_bytes())
        lines = export_lines(Path("export.jsonl").read_text(encoding="utf-8"))
    finally:
        os.chdir("/")
        shutil.rmtree(PLACE)
    with tempfile.TemporaryDirectory() as folder:
        expected = ask_everything(target, Path(folder))
    expected["export"] = {"lines": len(lines)}
    (target / "expected.json").write_text(legible(expected) + "\n", encoding="utf-8")


def legible(what: Any, depth: int = 0) -> str:
    """JSON in which one line is one answer."""
    if not (isinstance(what, dict) and what and depth < 3):
        return json.dumps(what, ensure_ascii=False, sort_keys=True)
    space = " " * (depth + 1)
    lines = [f"{space}{json.dumps(key)}: {legible(what[key], depth + 1)}" for key in sorted(what)]
    return "{\n" + ",\n".join(lines) + "\n" + " " * depth + "}"


# --- what there is -------------------------------------------------------------------------------


def make_everything() -> None:
    make_ana()
    last_of_cleo = hear_of_cleo()
    pull_from_carl()
    with serving("broker", "serve", "--store=hub", "--name=hub", "--tcp=127.0.0.1:0") as ready:
        url = address(ready)
        share_team(url)
        write_messages()
        share_garden(url)
        fill_the_lake(url)
    invite_for_a_year()
    write_unsent()
    with holdfast.open("ana") as ana:  # it loses a claim, and nobody has told it yet
        assert [result.error for result in ana.apply([last_of_cleo])] == [None]
    run("backup", "backup", "--home", "ana")
    run("export", "export.jsonl", "--home", "ana")
    shutil.copytree("ana", "killed")
    kill_at_work(Path("killed"))


def make_ana() -> None:
    with holdfast.open("ana", peer="ana", create=True) as ana:
        for slug, title in (("team", "The team"), ("diary", None)):
            fill(ana.create_mesh(slug, name=title), ana)


def fill(mesh: holdfast.Mesh, node: holdfast.Node) -> None:
    """Every family, with what was overwritten and what was deleted."""
    state = mesh.state
    for value in ("red", {"status": "green", "tests": 412, "ü": [None, True, 1.5, -(2**53)]}):
        state.set("build", value)
    state.set("build/linux", "green")
    state.set("build/macos", "red")
    state.delete("build/macos")
    state.set("again", 1)
    state.delete("again")
    state.set("again", 2)
    mesh.memory.set("lunch", "soup at twelve", tags=["food", "daily"])
    mesh.memory.set("lunch", {"what": "bread"}, tags=["food"])
    mesh.memory.set("secret", "gone soon")
    mesh.memory.forget("secret")
    mesh.vectors.store("sky", [0.1, 0.2, 0.9], model=MODEL, content="The sky is blue.")
    mesh.vectors.store("sky", [0.1, 0.3, 0.9], model=MODEL, content="The sky is grey.")
    mesh.vectors.store(
        "grass", [0.1, 0.9, 0.2], model=MODEL, content="Grass is green.", metadata={"page": 7}
    )
    mesh.vectors.store("mud", [0.5, 0.5, 0.5], model=MODEL)
    mesh.vectors.delete("mud", model=MODEL)
    mesh.vectors.store("sky", [4.0, 1.0], model=OTHER_MODEL, content="The sky is grey.")
    mesh.files.share("notes/today.txt", b"Buy paint.")
    mesh.files.share("notes/today.txt", b"Buy more paint.")
    mesh.files.share("photos/fence.raw", b"fence " * 20_000)
    mesh.files.share("photos/gate.raw", f"gate of {mesh.slug} ".encode() * 10_000)
    mesh.files.delete("photos/gate.raw")
    mesh.files.share("old.txt", b"old")
    mesh.files.delete("old.txt")
    fill_tasks(mesh)
    mesh.facts.append("pump:7", "pressure", 4.2)
    mesh.facts.append("door-3", "opened-by", {"badge": 17})
    picture = node.receive_blob(f"a picture for {mesh.slug} ".encode() * 5000)
    mesh.facts.append("door-3", "looked-like", {"at": "noon"}, objects=[picture])


def fill_tasks(mesh: holdfast.Mesh) -> None:
    tasks = mesh.tasks
    tasks.create("Water the plants")
    released = tasks.create("Paint the fence", description="Green, two coats.").task
    tasks.claim(released)
    tasks.release(released)
    tasks.claim(tasks.create("Oil the gate").task)
    done = tasks.create("Mend the roof").task
    tasks.claim(done)
    tasks.release(done)
    tasks.claim(done)
    tasks.complete(done)
    tasks.cancel(tasks.create("Move the house").task)


def exchange(source: holdfast.Node, target: holdfast.Node, mesh: str) -> None:
    for result in target.apply(e.raw for e in source.log.range() if e.mesh == mesh):
        assert result.error is None, result


def hear_of_cleo() -> bytes:
    """Two peers that write the same without having heard of each other, met by `apply`. Returns one
    more envelope of hers, a claim that ana has not heard of.
    """
    with (
        holdfast.open("ana") as ana,
        holdfast.open("cleo", peer="cleo", create=True) as cleo,
    ):
        hers, mine = cleo.mesh("diary", create=True), ana.mesh("diary")
        exchange(ana, cleo, "diary")
        contested = mine.tasks.create("Feed the cat").task
        later = mine.tasks.create("Feed the dog").task
        exchange(ana, cleo, "diary")
        for key in ("colour", "mood", "plan"):
            mine.state.set(key, f"ana's {key}")
        for key in ("colour", "mood", "plan", "hers"):
            hers.state.set(key, f"cleo's {key}")
        hers.state.delete("build/linux")
        mine.state.set("build/linux", "yellow")
        hers.memory.set("lunch", "cake", tags=["food"])
        hers.vectors.store("sea", [0.2, 0.2, 0.8], model=MODEL, content="The sea.")
        hers.files.share("hers.txt", b"small enough to travel")
        hers.files.share("hers.raw", b"first version " * 6000)
        ana.receive_blob(b"first version " * 6000)
        exchange(cleo, ana, "diary")
        hers.files.share("hers.raw", FAR_AWAY)
        hers.tasks.claim(contested)
        for tick in range(9):  # her stamps are to be the lower ones
            mine.state.set("tick", tick)
        mine.tasks.claim(contested)
        mine.tasks.claim(later)
        exchange(cleo, ana, "diary")
        hers.tasks.claim(later)
        last = cleo.log.tail(1)[0].raw
        lost = {row.entity: row.number for row in ana.conflicts()}
        ana.restore_conflict(lost["mood"])
        ana.dismiss_conflict(lost["plan"])
        assert ana.mesh("diary").files.last_known("hers.raw", peer="cleo").status == "stale"
    shutil.rmtree("cleo")
    return last


def pull_from_carl() -> None:
    """A link that has pulled, and could not take one fact: ana knows its id for another."""
    with (
        holdfast.open("carl", peer="carl", create=True) as carl,
        holdfast.open("ana") as ana,
    ):
        one, other = carl.create_mesh("team"), ana.mesh("team")
        one.facts.append("pump:9", "pressure", 5.1)
        twice = one.facts.append("pump:9", "pressure", 5.2).id
        other.facts.append("pump:1", "pressure", 1.0, id=twice)
        one.state.set("from carl", "hello")
    for one_home, other_home, reads in (("carl", "ana", "*"), ("ana", "carl", "team")):
        card = run("peer", "card", "--home", other_home).strip()
        run("peer", "trust", card, "--reads", reads, "--home", one_home)
    run("token", "add", "report", "--reads", "team", "--home", "ana")
    run("token", "add", "everything", "--home", "ana")
    with serving("up", "--home=carl", "--listen=127.0.0.1:0") as ready:
        mine = ("--mesh", "team", "--home", "ana")
        run("link", "add", address(ready), "--peer", "carl", *mine)
        with serving("up", "--home=ana"):
            until(lambda: ask("link", "show", "carl", "--home", "ana")["cursor"] == 3)
    run("link", "add", "https://192.0.2.7:7421", "--peer", "carl", "--name", "later", "--paused",
        "--mesh", "team", "--subject", "pump:", "--class", "facts", "--carries", "any",
        "--home", "ana")  # fmt: skip
    with holdfast.open("ana") as ana:
        ana.log.add_consumer("report", start=1)
        ana.log.confirm("report", 11)
        ana.log.confirm("report", ranges=[(13, 15)])
        pumps = import_module(FILTERS).Filter(
            meshes=("team", "diary"), subjects=("pump:",), classes=("facts",)
        )
        ana.log.add_consumer("pumps", start=1, filter=pumps, retire_ms=10**13, retire_lag=10**9)
    shutil.rmtree("carl")


def until(holds: Callable[[], bool]) -> None:
    """Asks until it is so; each question is a process, which takes its time."""
    for _ in range(1000):
        if holds():
            return
    raise AssertionError("it does not happen")


def share_team(url: str) -> None:
    run("mesh", "publish", "team", "--broker", url, "--home", "ana")
    invite = run("mesh", "invite", "team", "--home", "ana").strip()
    run("init", "--home", "ben", "--peer", "ben")
    run("mesh", "join", invite, "--home", "ben")
    with holdfast.open("ana") as ana, holdfast.open("ben") as ben:
        ana.mesh("team").state.set("colour", "green")
        ben.mesh("team").state.set("colour", "brown")
        ben.mesh("team").memory.set("lunch", "fish")
        ben.mesh("team").files.share("ben.raw", b"of ben " * 12_000)
        ben.mesh("team").tasks.create("Call the plumber")
    sync("ben", "ana", "ben")


def sync(*homes: str, mesh: str = "team") -> None:
    for home in homes:
        run("mesh", "sync", mesh, "--home", home)


def write_messages() -> None:
    team = ("--mesh", "team")
    run("mesh", "topic", "news", *team, "--home", "ana")
    run("mesh", "topic", "gossip", *team, "--home", "ana")
    run("mesh", "queue", "jobs", "--visibility", "45", "--deliveries", "3", *team, "--home", "ana")
    for home in ("ana", "ben"):
        run("mesh", "subscribe", "news", *team, "--home", home)
    to_ana = ("--mesh", "team", "--home", "ben")
    run("send", "the fence is painted", "--topic", "news", "--meta", '{"page": 1}', *to_ana)
    asked = run("send", "shall we?", "--dm", "ana", "--priority", "now", *to_ana).strip()
    run("send", "later", "--dm", "ana", "--priority", "low", *to_ana)
    for job in range(4):
        run("send", f"resize {job}.jpg", "--queue", "jobs", *team, "--home", "ana")
    sync("ben", "ana")
    run("inbox", "read", asked, "--home", "ana")
    run("inbox", "reply", asked, "yes", "--home", "ana")
    run("send", "who listens?", "--topic", "news", *team, "--home", "ana")
    lost = run("send", "to nowhere", "--topic", "nowhere", *team, "--home", "ana").strip()
    run("mesh", "sync", "team", "--patience", "1", "--home", "ana", code=1)
    run("outbox", "drop", lost, "--home", "ana")
    sync("ana", "ben")
    for fate in (("--dead", "--reason", "no"), ()):
        (taken,) = ask("queue", "take", "jobs", *team, "--home", "ben")
        run("queue", "settle", "jobs", taken["handle"], *fate, *team, "--home", "ben")


def share_garden(url: str) -> None:
    """A mesh that has forgotten entries and deletions: it goes to a broker as a snapshot."""
    with holdfast.open("dora", peer="dora", create=True) as dora:
        garden = dora.create_mesh("garden")
        fill(garden, dora)
    run("sweep", "--log-days", "0", "--tombstone-days", "0", "--home", "dora")
    with holdfast.open("dora") as dora:
        assert dora.log.head().first > 1
        dora.mesh("garden").state.set("after", "the sweep")
    run("mesh", "publish", "garden", "--broker", url, "--home", "dora")


def fill_the_lake(url: str) -> None:
    """Two runs, so that there is something to merge, then figures, then a snapshot."""
    grants = [f"--grant={grant}" for grant in ("read", "write", "send", "relay", "invite", "audit")]
    run("mesh", "grant", "ana", *grants, "--mesh", "team", "--home", "ana")
    lake = ("--lake", "lake")
    logs = ("ana", "ben", f"broker+{url}/team", "--key-file", "ana")
    one_spark(("pipeline", "run", *logs, *lake), ("pipeline", "compact", *lake))
    with holdfast.open("ana") as ana:
        ana.mesh("team").state.set("build/linux", "after the first run")
        ana.mesh("team").state.delete("again")
        ana.mesh("diary").facts.append("pump:7", "pressure", 4.3)
    sync("ana", "ben")
    one_spark(
        ("pipeline", "run", *lake),
        ("pipeline", "audit", *lake),
        ("pipeline", "snapshot", "snapshot", "--mesh", "team", "--sign-home", "ana", *lake),
    )


def invite_for_a_year() -> None:
    """At the broker as the tests serve it, and as it is left."""
    with serving_broker(Path("hub")) as ready:
        for home, mesh in (("ana", "team"), ("ben", "team"), ("dora", "garden")):
            run("mesh", "move", address(ready), "--mesh", mesh, "--home", home)
        year = ("--uses", "3", "--hours", "8760", "--grant", "read")
        where = ("--at", "https://192.0.2.7:7421", "--home", "ana")
        run("mesh", "invite", "team", *year, *where)
        sync("ana", "ben")
        sync("dora", mesh="garden")


def write_unsent() -> None:
    """The broker is away."""
    with holdfast.open("ana") as ana, holdfast.open("ben") as ben:
        ana.mesh("team").state.set("unsent", "by ana")
        ana.mesh("team").files.share("unsent.raw", b"unsent " * 11_000)
        ben.mesh("team").state.set("unsent", "by ben")
    team = ("--mesh", "team", "--home", "ana")
    run("send", "are you there?", "--dm", "ben", *team)
    run("send", "still here", "--topic", "news", *team)
    run("send", "resize 9.jpg", "--queue", "jobs", *team)


KILLED = """
import os, signal, sys, holdfast
node = holdfast.open(sys.argv[1])
model = holdfast.Model(provider="local", name="toy", version="1", dim=3)
for slug in ("team", "diary"):
    mesh = node.mesh(slug)
    mesh.state.set("last words", "in the WAL")
    mesh.memory.set("last words", [1, 2, 3])
    mesh.files.share("last.raw", b"the last one " * 6000)
    mesh.vectors.store("last", [1.0, 0.0, 0.0], model=model, content="Last.")
    mesh.tasks.claim(mesh.tasks.create("Never finished").task)
    mesh.facts.append("pump:7", "pressure", 0)
node.mesh("team").send("from the grave", dm="ben")
os.kill(os.getpid(), signal.SIGKILL)
"""


def kill_at_work(home: Path) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED, str(home)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert (home / "data.db-wal").stat().st_size > 0


# --- into archives -------------------------------------------------------------------------------


def pack(folder: Path, archive: Path) -> None:
    """The same bytes for the same content, whoever made it and when."""

    def plain(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
        if Path(entry.name).name in LEFT_OUT:
            return None
        entry.uid = entry.gid = entry.mtime = 0
        entry.uname = entry.gname = ""
        return entry

    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.PAX_FORMAT) as tar:
        tar.add(folder, folder.name, filter=plain)
    archive.write_bytes(lzma.compress(raw.getvalue(), preset=9 | lzma.PRESET_EXTREME))


# --- what is answered about it -------------------------------------------------------------------


def ask_everything(made: Path, folder: Path) -> dict[str, Any]:
    """Asked of what is in the archives, as the tests will."""
    expected: dict[str, Any] = {}
    for name in ("ana", "killed", "ben", "dora"):
        home = unpack(made / f"{name}.tar.xz", folder / "asked")
        expected[name] = home_answers(home, more=name == "ana")
    again = {
        name: unpack(made / f"{name}.tar.xz", folder / "served") for name in ("ana", "dora", "hub")
    }
    with serving_broker(again["hub"]) as ready:
        for name, mesh in (("ana", "team"), ("dora", "garden")):
            run("mesh", "move", address(ready), "--mesh", mesh, "--home", str(again[name]))
        members = {"team": again["ana"], "garden": again["dora"]}
        expected["hub"] = broker_answers(again["hub"], ready, members)
    lake = unpack(made / "lake.tar.xz", folder / "asked")
    expected["lake"] = ask_lake(lake)
    return expected


def ask_lake(lake: Path) -> dict[str, Any]:
    status = ask("pipeline", "status", "--offline", "--lake", str(lake))
    (rows,) = one_spark(("pipeline", "query", lake_query(), "--limit=100000", "--lake", str(lake)))
    status.pop("lake", None)
    return {"status": status, "rows": lake_answers(rows)}


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute())
