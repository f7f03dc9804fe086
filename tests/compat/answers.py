"""What the code answers about a home, a broker or a lake: asked once when the fixtures were made,
and asked again by the tests.

Only the command and the library are used, so that nothing in here knows how the code is laid out.
The folder that is asked about is written `FOLDER` in an answer, so that it may lie anywhere.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

import holdfast

PATIENCE_S = 100
MODEL = holdfast.Model(provider="local", name="toy", version="1", dim=3)
OTHER_MODEL = holdfast.Model(provider="local", name="toy", version="2", dim=2)
LONG_AGO = ("--dedupe=36500", "--keep-days=36500")
"""How a broker is served here: what it was given is good for as long as these fixtures are kept."""
LAKE_TABLES = (
    *("bronze", "sightings", "quarantine"),
    *("state", "memory", "files", "vectors", "models", "tasks", "task_events", "facts", "messages"),
    *("findings", "growth", "conflicts"),
)
Answers = dict[str, Any]


# --- the command ---------------------------------------------------------------------------------


def run(*words: str, code: int = 0, **env: str) -> str:
    """Runs the command as a process of its own; it must exit with `code`."""
    done = subprocess.run(
        [sys.executable, "-m", "holdfast", *words],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        stdin=subprocess.DEVNULL,
        env={**os.environ, "HOLDFAST_STORE_SYNC": "normal", "HOLDFAST_MESH": "", **env},
    )
    assert done.returncode == code, (words, done.returncode, done.stdout, done.stderr)
    return done.stdout


def ask(*words: str, code: int = 0, **env: str) -> Any:
    """The JSON that the command answers with."""
    said = run(*words, "--json", code=code, **env)
    return json.loads(said)


@contextmanager
def serving(*words: str) -> Iterator[dict[str, Any]]:
    """`broker serve` or `up` as a process, until the block ends; gives what it said of itself."""
    process = subprocess.Popen(
        [sys.executable, "-m", "holdfast", *words, "--json"],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "HOLDFAST_STORE_SYNC": "normal"},
    )
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        assert line, f"{words} did not start"
        yield json.loads(line)
        process.send_signal(signal.SIGTERM)
        process.stdout.read()
        assert process.wait(PATIENCE_S) == 0
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def serving_broker(store: Path) -> Any:
    return serving("broker", "serve", f"--store={store}", "--tcp=127.0.0.1:0", *LONG_AGO)


def address(ready: Mapping[str, Any]) -> str:
    """Where it listens on loopback."""
    return next(str(url) for url in ready["listening"] if url.startswith("http"))


# --- archives ------------------------------------------------------------------------------------


def unpack(archive: Path, target: Path) -> Path:
    """Unpacks the one folder that an archive holds, and returns it."""
    with tarfile.open(archive, "r:xz") as tar:
        tar.extractall(target, filter="tar")
        return target / tar.getnames()[0]


# --- a home --------------------------------------------------------------------------------------


def home_answers(home: Path, *, more: bool = False) -> Answers:
    """Everything that a home holds. Warnings are told once, so it may be asked once."""
    told: Answers = {}
    with holdfast.open(home, sync="normal") as node:
        told["peer"] = node.peer
        told["warnings"] = [
            [w.mesh, w.type, w.entity, w.by_peer, w.at_lamport] for w in node.take_warnings()
        ]
        told["log"] = log_answers(node)
        told["meshes"] = {row.slug: mesh_answers(node, row.slug) for row in node.meshes()}
        told["bodies"] = {
            row.id: [node.inbox.get(row.id).text, node.inbox.get(row.id).meta]
            for row in node.inbox.list()
        }
        told["lost"] = [
            [row.number, row.mesh, row.entity, row.loser.peer, sha256(row.loser_body).hexdigest()]
            for row in node.conflicts(open_only=False)
        ]
    told["commands"] = {
        " ".join(words): _anywhere(ask(*words, "--home", str(home)), home)
        for words in _home_questions(told, more)
    }
    told["doctor"] = doctor_answers(home)
    return told


def log_answers(node: holdfast.Node) -> Answers:
    head = node.log.head()
    entries = list(node.log.range(head.first))
    every = sha256()
    for entry in entries:
        every.update(entry.raw)
    return {
        "epoch": head.epoch,
        "first": head.first,
        "offset": head.offset,
        "entries": len(entries),
        "recorded": digest([[e.offset, e.recorded_at] for e in entries]),
        "raw": every.hexdigest(),
    }


def mesh_answers(node: holdfast.Node, slug: str) -> Answers:
    """One mesh by the library: what its families hold, and what they held before."""
    mesh = node.mesh(slug)
    return {
        "counts": mesh.counts(),
        "lamport": mesh.clock().lamport,
        "peers": [peer.peer for peer in mesh.peers()],
        "state": [[e.key, e.value, e.lamport, e.peer] for e in mesh.state.list()],
        "memory": [
            [m.peer, m.key, m.value, list(m.tags), m.lamport] for m in mesh.memory.list(scope="all")
        ],
        "vectors": [
            [hit.peer, hit.key, hit.content, hit.metadata, round(hit.distance, 6)]
            for model, near in ((MODEL, [0.1, 0.8, 0.3]), (OTHER_MODEL, [3.0, 1.0]))
            for hit in mesh.vectors.search(near, model=model, limit=50, exact=True)
        ],
        "files": [_file(mesh, f.path, f.peer, f.here) for f in mesh.files.list()],
        "tasks": [
            [
                *(t.task, t.title, t.description, t.status.value, t.claimed_by, t.generation),
                [[e.event, e.version.lamport, e.version.peer] for e in mesh.tasks.events(t.task)],
            ]
            for t in mesh.tasks.list()
        ],
        "past": _past(node, mesh),
    }


def _file(mesh: holdfast.Mesh, path: str, peer: str, here: bool) -> list[Any]:
    content = sha256(mesh.files.read(path, peer=peer)).hexdigest() if here else None
    return [peer, path, mesh.files.info(path, peer=peer).sha256, here, content]


def _past(node: holdfast.Node, mesh: holdfast.Mesh) -> list[Any]:
    """The state and the memories after every entry of the log, each as a digest."""
    head = node.log.head()
    return [
        digest(
            [
                [[e.key, e.value] for e in mesh.state.as_of(offset=offset)],
                [[m.peer, m.key, m.value] for m in mesh.memory.as_of(offset=offset)],
            ]
        )
        for offset in range(1, head.offset + 1)
        if head.first == 1
    ]


def _home_questions(told: Answers, more: bool) -> Iterator[Sequence[str]]:
    """Each is a process, so `more` is asked of one home only, ana's, who has everything."""
    yield from (("mesh", "list"), ("inbox", "list"), ("outbox", "list", "--all"))
    if not more:
        return
    yield from (("outbox", "lanes"), ("peer", "card"), ("peer", "zones"), ("token", "list"))
    yield from (("consumer", "list"), ("link", "list"), ("link", "quarantine", "carl"))
    yield from (("fact", "fetch", "report"), ("fact", "fetch", "pumps"), ("log", "range", "1"))
    yield from (("conflict", "list", "--all"), ("conflict", "show", "4"), ("check", "integrity"))
    for words in (
        *(("state", "list"), ("memory", "list", "--scope", "all"), ("file", "list")),
        *(("vector", "models"), ("task", "list"), ("mesh", "info")),
        ("task", "events", told["meshes"]["diary"]["tasks"][-1][0]),
    ):
        yield *words, "--mesh", "diary"


def doctor_answers(home: Path) -> list[list[str]]:
    """What doctor looks at, and how it finds it: all but what depends on the day or the machine."""
    found = ask("doctor", "--full", "--home", str(home))
    passing = {"backup", "disk", "fill", "python", "sqlite", "links", "sync", "ballast", "vectors"}
    return [
        [check["name"], check["status"]]
        for check in found["checks"]
        if check["name"] not in passing
    ]


def export_lines(text: str) -> list[str]:
    """An export without its first line, which says when it was made, and its last, the sum."""
    return text.splitlines()[1:-1]


def digest(what: Any) -> str:
    """Short enough to be written down, long enough to tell two answers apart."""
    return sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:16]


def _anywhere(said: Any, folder: Path) -> Any:
    return json.loads(json.dumps(said).replace(str(folder), "FOLDER"))


# --- a broker ------------------------------------------------------------------------------------


def broker_answers(store: Path, ready: Mapping[str, Any], homes: Mapping[str, Path]) -> Answers:
    """What a broker that is served says of itself, and what it tells two of its members."""
    status = ask("broker", "status", "--store", str(store))
    told: Answers = {
        "name": ready["name"],
        "card": ready["card"],
        "status": {key: status[key] for key in ("name", "card", "dedupe_mode", "counts")},
        "orphans": ask("broker", "orphans", "--store", str(store)),
    }
    for mesh, home in homes.items():
        where = ("--mesh", mesh, "--home", str(home))
        told[mesh] = {
            "members": [
                {key: member[key] for key in ("name", "grants", "key", "added_at")}
                for member in ask("mesh", "members", *where)
            ],
            "destinations": ask("mesh", "destinations", *where),
            "queues": ask("queue", "list", *where),
            "invites": ask("mesh", "invites", *where),
        }
    return told


# --- a lake --------------------------------------------------------------------------------------


def lake_query() -> str:
    """Every row of every table, as text."""
    return " UNION ALL ".join(
        f"SELECT '{table}' AS name, to_json(struct(*)) AS row FROM {table}" for table in LAKE_TABLES
    )


def lake_answers(rows: Sequence[Mapping[str, str]]) -> dict[str, list[str]]:
    """The answer to `lake_query` by table."""
    found: dict[str, list[str]] = {table: [] for table in LAKE_TABLES}
    for row in rows:
        what = json.loads(row["row"])
        if "raw" in what:
            what["raw"] = digest(what["raw"])
        found[row["name"]].append(json.dumps(what, sort_keys=True))
    return {table: sorted(lines) for table, lines in found.items()}
