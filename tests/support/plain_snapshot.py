"""Histories over several nodes, and snapshots of them made in the plainest way.

The pipeline makes snapshots with Spark; here the same is said in a few loops over everything, for
tests of whoever reads them, and to hold Spark's against.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from holdfast.node.library.node import Node
from holdfast.node.log.digests import digests
from holdfast.node.snapshots.manifest import (
    NAME,
    PARTS,
    LogCoverage,
    MeshPoint,
    Signer,
    SnapshotManifest,
    SnapshotPart,
)
from holdfast.node.snapshots.parts import PartWriter, content_sum, sum_text
from holdfast.rules.bodies import VectorDelete, VectorStore, decode_body, family_of
from holdfast.rules.envelope import Envelope, decode
from holdfast.rules.rows import Entry
from holdfast.rules.vectors import Model
from support.nodes import deliver

MODEL = Model(provider="local", name="tiny", version="1", dim=2)
TAIL = 32


def wander(nodes: Sequence[Node], seed: object, steps: int, mesh: str = "team") -> None:
    """Everybody writes a little of everything, and some of it reaches others now and then."""
    rng = random.Random(f"history {seed}")
    for _ in range(steps):
        node = rng.choice(nodes)
        if rng.random() < 0.08:
            deliver(node, rng.choice([other for other in nodes if other is not node]))
        else:
            _write(rng, node, mesh)


def meet(nodes: Sequence[Node]) -> None:
    """By the end everybody has everything."""
    for source in nodes:
        for target in nodes:
            if source is not target:
                deliver(source, target)


def _write(rng: random.Random, node: Node, slug: str) -> None:
    mesh, key = node.mesh(slug), f"k{rng.randrange(6)}"
    kind = rng.randrange(9)
    if kind == 0:
        mesh.state.set(key, rng.randrange(100))
    elif kind == 1 and mesh.state.get(key, default=None) is not None:
        mesh.state.delete(key)
    elif kind == 2:
        mesh.memory.set(key, [rng.randrange(100)], tags=("a",))
    elif kind == 3:
        mesh.files.share(f"{key}.txt", rng.randbytes(rng.choice((3, 70_000))))
    elif kind == 4:
        mesh.vectors.store(key, [rng.random(), 1.0], model=MODEL, content=f"text of {key}")
    elif kind == 5:
        mesh.tasks.create(f"task {key}")
    elif kind == 6:
        _turn(rng, mesh)
    else:
        mesh.facts.append(key, "is", rng.randrange(100), meta={"n": 1} if kind == 7 else None)


def _turn(rng: random.Random, mesh: Any) -> None:
    tasks = list(mesh.tasks.list())
    if not tasks:
        return
    task = rng.choice(tasks)
    if task.status == "open":
        (mesh.tasks.claim if rng.random() < 0.8 else mesh.tasks.cancel)(task.task)
    elif task.status == "claimed" and task.claimed_by == mesh._engine.ctx.peer:
        (mesh.tasks.complete if rng.random() < 0.5 else mesh.tasks.release)(task.task)


def table_digests(node: Node, meshes: Iterable[str] = ("team",)) -> dict[str, Any]:
    """What the tables of a node come to; its log is its own."""
    with node._engine.store.read() as reader:
        found = digests(reader, node.peer, tuple(meshes))
    return {
        mesh: {name: table for name, table in said.tables.items() if name != "log"}
        for mesh, said in found.meshes.items()
    }


# --- the plainest snapshot -----------------------------------------------------------------------


def key_of(envelope: Envelope, vectors: str = "all") -> tuple[str, ...]:
    """What an envelope competes for; its own id where everything is kept."""
    family = family_of(envelope.op)
    if family in ("state", "memory", "file"):
        return (envelope.mesh, family, envelope.owner, envelope.entity)
    body = decode_body(envelope)
    if vectors == "newest" and isinstance(body, VectorStore | VectorDelete):
        model = body.model_id if isinstance(body, VectorDelete) else body.identity().fingerprint
        return (envelope.mesh, family, envelope.owner, envelope.entity, model)
    return (envelope.id.hex(),)


def winners(
    entries: Iterable[Entry], *, facts: bool = True, vectors: str = "all"
) -> list[Envelope]:
    """In the one order; messages are nobody's state."""
    found: dict[tuple[str, ...], Envelope] = {}
    for entry in entries:
        envelope = decode(entry.raw)
        family = family_of(envelope.op)
        if family == "message" or (family == "fact" and not facts):
            continue
        key = key_of(envelope, vectors)
        if key not in found or _order(envelope) > _order(found[key]):
            found[key] = envelope
    return sorted(found.values(), key=_order)


def _order(envelope: Envelope) -> tuple[int, bytes, bytes]:
    return (envelope.lamport, envelope.origin.encode(), envelope.id)


def plain_snapshot(
    folder: Path,
    logs: Mapping[str, Sequence[Entry]],
    *,
    facts: bool = True,
    rows_per_part: int = 50,
    signer: Signer | None = None,
    **fields: Any,
) -> SnapshotManifest:
    """Of all meshes in these logs, which are all in their first epoch."""
    raws = {entry.id: entry.raw for log in logs.values() for entry in log}
    everything = [entry for log in logs.values() for entry in log]
    kept = [raws[envelope.id] for envelope in winners(everything, facts=facts)]
    (folder / PARTS).mkdir(parents=True)
    parts = [
        write_part(folder, f"part-{at}.gz", kept[at : at + rows_per_part])
        for at in range(0, len(kept), rows_per_part)
    ]
    read = [decode(entry.raw) for entry in everything]
    counts: dict[str, int] = {}
    for raw in kept:
        family = family_of(decode(raw).op)
        counts[family] = counts.get(family, 0) + 1
    meshes = sorted({envelope.mesh for envelope in read})
    manifest = SnapshotManifest(
        **{
            "lake": "test",
            "created_at": 1,
            "meshes": {
                mesh: MeshPoint(clock=max(e.lamport for e in read if e.mesh == mesh))
                for mesh in meshes
            },
            "facts": facts,
            "counts": counts,
            "rows": len(kept),
            "content": sum_text(content_sum(kept)),
            "logs": tuple(place(name, log) for name, log in sorted(logs.items())),
            "origins": {envelope.origin: envelope.epoch for envelope in read},
            "parts": tuple(parts),
            **fields,
        }
    ).sealed(signer)
    (folder / NAME).write_bytes(manifest.encode())
    return manifest


def write_part(folder: Path, name: str, raws: Iterable[bytes]) -> SnapshotPart:
    with open(folder / PARTS / name, "wb") as out:
        writer = PartWriter(out.write)
        for raw in raws:
            writer.add(raw)
        return writer.finish(f"{PARTS}/{name}")


def place(log: str, entries: Sequence[Entry]) -> LogCoverage:
    tail = [(entry.id.hex(), decode(entry.raw).fingerprint.hex()) for entry in entries[-TAIL:]]
    last = entries[-1].offset if entries else 0
    return LogCoverage(log=log, epoch=1, offset=last, tail=tuple(tail))
