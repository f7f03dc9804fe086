"""What must hold inside a node at every moment, whatever its disk and its peers have done.

`audit` reads one consistent state and returns sentences, one for each thing that is wrong:

* the log has no gap, its columns say what its envelopes say, its times never run backwards;
* the node's own stamps and sequence numbers only grow, and no clock is behind the log;
* the tables are the fold of the log, as far back as the log still reaches;
* blobs are registered exactly while a file or a fact names them, and their content is there;
* the search for vectors finds what is live and nothing else;
* of the claims of one generation the first holds the task, and of its ends the first counts;
* the ledger lists each version that the newest of its key has not seen, and each lost turn, once.

Two nodes are compared by their `rows`; `differences` says where they part.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import Any, Final

import msgspec

from holdfast.node.library.node import Node
from holdfast.node.log.history import replay
from holdfast.rules.bodies import Fact, decode_trusted_body
from holdfast.rules.envelope import decode_trusted
from holdfast.rules.errors import HoldfastError
from holdfast.rules.ids import is_id_of
from holdfast.rules.ledger import Written, lost_among
from holdfast.rules.limits import LEDGER_OF_KEY_MAX, SEARCH_LIMIT_MAX
from holdfast.rules.merge import version_of
from holdfast.rules.order import Version, order_key
from holdfast.rules.rows import Entry, FileRow
from holdfast.rules.tasks import DISCARDED, TaskStatus
from holdfast.rules.vectors import Model
from holdfast.storage.files.blobs import BlobStore
from holdfast.storage.ports import Reader

ALL: Final = 1 << 40

# Each node has these for itself: where a change stands in its log, and times by its own clock.
_OWN_FIELDS: Final = frozenset({"offset", "applied_at"})
Rows = dict[str, list[dict[str, Any]]]


def audit(node: Node) -> list[str]:
    """Everything that is wrong with one node, as sentences; empty if nothing is."""
    with node._engine.store.read() as reader:
        entries = reader.log_range(1, ALL, ALL)
        return [
            *_log(entries, reader, node.peer),
            *_fold(entries, reader, node.peer),
            *_blobs(entries, reader, node._engine.blobs, node.peer),
            *_vectors(reader),
            *_tasks(reader),
            *_ledger(entries, reader),
        ]


def rows(reader: Reader, mesh: str, *, dead: bool = True) -> Rows:
    """Every family of a mesh; without the dead ones, which nodes forget at different times."""
    kept = (lambda row: True) if dead else (lambda row: not row.tombstone)
    vectors = [row for _, row in reader.vector_scan(mesh, None, 0, ALL, live_only=not dead)]
    tasks = reader.task_scan(mesh, None, "", ALL)
    return {
        "state": _plain(filter(kept, reader.state_scan(mesh, "", "", ALL))),
        "memory": _plain(filter(kept, reader.memory_scan(mesh, None, ("", ""), ALL))),
        "file": _plain(filter(kept, reader.file_scan(mesh, None, ("", ""), ALL))),
        "vector": sorted(_plain(vectors), key=lambda row: (row["lamport"], row["peer"], row["id"])),
        "task": _plain(tasks),
        "turn": _plain(turn for task in tasks for turn in reader.task_events(mesh, task.task)),
    }


def differences(one: Rows, other: Rows) -> list[str]:
    """Where two sets of rows part, one line per family, with the first row that differs."""
    found = []
    for family in one:
        a, b = one[family], other[family]
        if a != b:
            left = next((row for row in a if row not in b), None)
            right = next((row for row in b if row not in a), None)
            found.append(f"{family}: {len(a)} and {len(b)} rows; {left} against {right}")
    return found


def _plain(found: Iterable[Any]) -> list[dict[str, Any]]:
    return [
        {
            name: value
            for name, value in msgspec.structs.asdict(row).items()
            if name not in _OWN_FIELDS
        }
        for row in found
    ]


# --- the log -------------------------------------------------------------------------------------


def _log(entries: list[Entry], reader: Reader, peer: str) -> list[str]:
    problems = []
    offsets = [entry.offset for entry in entries]
    if offsets and offsets != list(range(offsets[0], offsets[0] + len(offsets))):
        problems.append("the log has a gap")
    turns = {turn.offset for turn in reader.log_turns()}
    for before, entry in pairwise(entries):
        if entry.recorded_at < before.recorded_at and entry.offset not in turns:
            problems.append("times run backwards along the log, and no turn is noted")
    own: dict[str, tuple[int, int, int]] = {}
    for entry in entries:
        envelope = decode_trusted(entry.raw)
        fields = (envelope.mesh, envelope.op, envelope.entity, envelope.origin)
        ours = is_id_of(entry.id, envelope.id, entry.raw)
        if not ours or fields != (entry.mesh, entry.op, entry.entity, entry.origin):
            problems.append(f"entry {entry.offset} is not the envelope that it holds")
        # What was forgotten in a restore and came back from others stands behind what is newer.
        if envelope.origin == peer and envelope.epoch == reader.epoch():
            problems += _own_stamp(own, entry, (envelope.epoch, envelope.seq, envelope.lamport))
    for mesh in reader.mesh_list():
        highest = max((entry.lamport for entry in entries if entry.mesh == mesh.slug), default=0)
        if mesh.lamport < highest:
            problems.append(f"the clock of {mesh.slug} stands at {mesh.lamport}, below {highest}")
        if mesh.slug in own and mesh.seq < own[mesh.slug][1]:
            problems.append(f"{mesh.slug} has counted {mesh.seq} own envelopes, and has more")
    return problems


def _own_stamp(
    last: dict[str, tuple[int, int, int]], entry: Entry, now: tuple[int, int, int]
) -> list[str]:
    """Stamps of one peer only grow, and its numbers count on without a gap."""
    epoch, seq, lamport = now
    before = last.get(entry.mesh)
    last[entry.mesh] = now
    if before is None:
        return []
    problems = []
    if lamport <= before[2]:
        problems.append(f"own entry {entry.offset} has stamp {lamport} after {before[2]}")
    if epoch == before[0] and seq != before[1] + 1:
        problems.append(f"own entry {entry.offset} has number {seq} after {before[1]}")
    return problems


# --- the fold ------------------------------------------------------------------------------------


def _fold(entries: list[Entry], reader: Reader, peer: str) -> list[str]:
    if (entries and entries[0].offset != 1) or any(m.forgotten_lamport for m in reader.mesh_list()):
        return []  # the beginning is gone, or tombstones are: the log is not the whole story
    meshes = reader.mesh_list()
    again = replay(iter(entries), meshes, peer)
    problems = []
    with again.read() as folded:
        for mesh in (mesh.slug for mesh in meshes):
            problems += [
                f"{mesh} is not the fold of its log: {line}"
                for line in differences(rows(reader, mesh), rows(folded, mesh))
            ]
    return problems


def _ledger(entries: list[Entry], reader: Reader) -> list[str]:
    """The entries that wait are what the log says is lost, but for what was decided."""
    if (entries and entries[0].offset != 1) or any(m.forgotten_lamport for m in reader.mesh_list()):
        return []
    problems = []
    for mesh in (mesh.slug for mesh in reader.mesh_list()):
        rows = reader.conflict_list(mesh, open_only=False, after=0, limit=ALL)
        decided = {row.loser for row in rows if row.resolved_at is not None}
        waiting = sorted(row.loser for row in rows if row.resolved_at is None)
        lost = set(_lost_state(entries, mesh)) | set(_lost_turns(reader, mesh))
        if waiting != sorted(lost - decided):
            wrong = sorted(lost.symmetric_difference(waiting) - decided)
            problems.append(f"the ledger of {mesh} is wrong about {wrong}")
    return problems


def _lost_state(entries: list[Entry], mesh: str) -> list[Version]:
    versions: dict[str, list[Written]] = {}
    for entry in entries:
        if entry.mesh == mesh and entry.op.startswith("state."):
            envelope = decode_trusted(entry.raw)
            one = Written(version_of(envelope), envelope.base)
            versions.setdefault(entry.entity, []).append(one)
    return [
        version for known in versions.values() for version in lost_among(known)[:LEDGER_OF_KEY_MAX]
    ]


def _lost_turns(reader: Reader, mesh: str) -> list[Version]:
    return [
        event.version
        for task in reader.task_scan(mesh, None, "", ALL, known_only=False)
        for event in reader.task_events(mesh, task.task)
        if event.event in DISCARDED and event.against is not None
    ]


# --- blobs and vectors ---------------------------------------------------------------------------


def missing_content(node: Node) -> list[str]:
    """Files, and objects that facts name, whose content is not here."""
    with node._engine.store.read() as reader:
        named = [(f"{row.owner}/{row.path}", row.sha256) for row in _blob_files(reader)]
        named += [(sha, sha) for _, sha in reader.fact_objects(ALL, ALL)]
    return [name for name, sha in named if not node._engine.blobs.exists(sha)]


def _blob_files(reader: Reader) -> list[FileRow]:
    return [
        row
        for mesh in reader.mesh_list()
        for row in reader.file_scan(mesh.slug, None, ("", ""), ALL)
        if row.in_blob
    ]


def _blobs(entries: list[Entry], reader: Reader, blobs: BlobStore, peer: str) -> list[str]:
    problems = []
    files = _blob_files(reader)
    objects = _objects(entries)
    if objects != reader.fact_objects(ALL, ALL):
        problems.append("the objects that facts hold are not those that they name")
    named = {row.sha256 for row in files} | {sha for _, sha in objects}
    registered = {row.sha256: row for row in reader.blob_scan("", ALL)}
    for sha in sorted(named - registered.keys()):
        problems.append(f"blob {sha} is named and not registered")
    for sha, row in registered.items():
        if (row.released_at is None) != (sha in named):
            problems.append(f"blob {sha} is {'named' if sha in named else 'released'} wrongly")
    own = {offset for offset, entry in enumerate(entries) if entry.origin == peer}
    for file in files:
        if file.owner == peer or blobs.exists(file.sha256):
            problems += _content(blobs, file.sha256, f"{file.path} of {file.owner}", file.size)
    first = entries[0].offset if entries else 1
    for offset, sha in objects:
        if offset - first in own or blobs.exists(sha):
            problems += _content(blobs, sha, f"object of fact {offset}")
    return problems


def _objects(entries: list[Entry]) -> list[tuple[int, str]]:
    """What the facts of the log name, by offset."""
    found = []
    for entry in entries:
        if entry.op == "fact.append":
            body = decode_trusted_body(decode_trusted(entry.raw))
            assert isinstance(body, Fact)
            found += [(entry.offset, digest.hex()) for digest in sorted(body.objects)]
    return found


def _content(blobs: BlobStore, sha: str, what: str, expected: int | None = None) -> list[str]:
    try:
        size = blobs.verify(sha)
    except HoldfastError as error:
        return [f"{what}: {error.message}"]
    if expected is not None and size != expected:
        return [f"{what} has {size} bytes instead of {expected}"]
    return []


def _vectors(reader: Reader) -> list[str]:
    problems = []
    for row in reader.model_list():
        model = Model(
            provider=row.provider,
            name=row.name,
            version=row.version,
            dim=row.dim,
            quantization=row.quantization,
        )
        origin = bytes(model.packed_bytes)
        for mesh in reader.mesh_list():
            live = reader.vector_scan(mesh.slug, row.id, 0, ALL, live_only=True)
            if len(live) >= SEARCH_LIMIT_MAX:
                continue
            hits = reader.vector_search(mesh.slug, model, origin, SEARCH_LIMIT_MAX, exact=True)
            if sorted(hit.id for hit, _ in hits) != sorted(row.id for _, row in live):
                problems.append(f"the index of {model.name} does not hold what is live")
    return problems


def _tasks(reader: Reader) -> list[str]:
    """The rule of `holdfast.rules.tasks`, stated anew and more simply than it is carried out."""
    problems = []
    for mesh in reader.mesh_list():
        for task in reader.task_scan(mesh.slug, None, "", ALL):
            turns = reader.task_events(mesh.slug, task.task)
            opened = max((order_key(t.version) for t in turns if t.event == "released"), default=())
            claims = [
                t.version
                for t in turns
                if (t.kind, t.generation) == ("claim", task.generation)
                and order_key(t.version) > opened
            ]
            first = min(claims, key=order_key, default=None)
            if task.status is TaskStatus.CLAIMED and task.holder != first:
                problems.append(f"task {task.task} is held by {task.holder}, not by {first}")
            ends = [t.version for t in turns if t.kind in ("complete", "cancel")]
            if task.ended != min(ends, key=order_key, default=None):
                problems.append(f"task {task.task} was not ended by the first who did")
    return problems
