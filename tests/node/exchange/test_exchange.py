"""A home as text and back: round trips, interruptions, files that were cut, changed or mixed up."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any, BinaryIO, cast

import msgspec
import pytest

from holdfast.node.core.engine import NodeEngine
from holdfast.node.exchange.export import export
from holdfast.node.exchange.import_rows import import_, import_log
from holdfast.node.library.node import Node, open_node
from holdfast.node.upkeep.sweep import Ttl
from holdfast.rules import limits
from holdfast.rules.bodies import Fact, decode_trusted_body
from holdfast.rules.envelope import decode, decode_trusted
from holdfast.rules.errors import (
    BadInput,
    BadKey,
    BadValue,
    BadVector,
    OverLimit,
    StoreBusy,
    UnknownMesh,
    UnsupportedProtocol,
)
from holdfast.rules.rows import JobRow
from holdfast.rules.tasks import TaskStatus
from support.keeping import LARGE, MODEL, fill, make_home, team
from support.snapshot import differences, snapshot


@pytest.fixture
def ana(tmp_path: Path) -> Iterator[Node]:
    with make_home(tmp_path / "ana") as node:
        fill(team(node))
        yield node


@pytest.fixture
def bob(tmp_path: Path) -> Iterator[Node]:
    with open_node(tmp_path / "bob", peer="bob", create=True, sync="normal") as node:
        yield node


def exported(node: Node, **options: Any) -> io.BytesIO:
    out = io.BytesIO()
    export(node, out, **options)
    return out


def lines(file: io.BytesIO) -> list[dict[str, Any]]:
    return [msgspec.json.decode(line) for line in file.getvalue().splitlines()]


def rewritten(file: io.BytesIO, change: Callable[[list[Any]], Any]) -> io.BytesIO:
    """The same export with other lines, and a last line that fits them."""
    rows = lines(file)[:-1]
    change(rows)
    body = b"".join(msgspec.json.encode(row) + b"\n" for row in rows)
    end = {"holdfast": "end", "lines": len(rows), "counts": {}, "sha256": sha256(body).hexdigest()}
    return io.BytesIO(body + msgspec.json.encode(end) + b"\n")


def contents(node: Node) -> dict[str, Any]:
    """What people see of a mesh, without stamps and ids."""
    mesh = team(node)
    return {
        "state": {entry.key: entry.value for entry in mesh.state.list()},
        "memory": {
            (row.peer, row.key): (row.value, row.tags) for row in mesh.memory.list(scope="all")
        },
        "files": {
            (row.peer, row.path): mesh.files.read(row.path, peer=row.peer)
            for row in mesh.files.list()
        },
        "vectors": [
            (hit.peer, hit.key, hit.content, hit.metadata)
            for hit in mesh.vectors.search([0, 1, 2], model=MODEL, limit=100)
        ],
        "tasks": sorted((row.title, row.description, row.status) for row in mesh.tasks.list()),
        "facts": sorted(entry.entity for entry in node.log.range() if entry.op == "fact.append"),
    }


# --- out -----------------------------------------------------------------------------------------


def test_S13_an_export_holds_every_family_and_the_log(ana: Node) -> None:
    file = exported(ana)
    rows = lines(file)
    head = ana.log.head().offset
    assert rows[0]["holdfast"] == "export"
    assert (rows[0]["peer"], rows[0]["epoch"], rows[0]["head"]) == ("ana", 1, head)
    kinds = {row["kind"] for row in rows[1:-1]}
    assert kinds == {"mesh", "model", "state", "memory", "vector"} | {
        "blob",
        "file",
        "task",
        "fact",
        "log",
    }
    body = b"".join(line + b"\n" for line in file.getvalue().splitlines()[:-1])
    assert rows[-1]["sha256"] == sha256(body).hexdigest()
    assert rows[-1]["counts"]["log"] == head
    assert [row["offset"] for row in rows if row.get("kind") == "log"] == list(range(1, head + 1))


def test_S13_an_export_of_some_meshes_holds_nothing_of_the_others(ana: Node) -> None:
    ana.create_mesh("secret")
    ana.mesh("secret").state.set("password", "hunter2")
    ana.mesh("secret").facts.append("password", "is", "hunter2")
    file = exported(ana, meshes=["team"])
    assert b"hunter2" not in file.getvalue()
    assert b"secret" not in file.getvalue()
    with pytest.raises(UnknownMesh):
        exported(ana, meshes=["nowhere"])


def test_S13_an_export_can_leave_out_the_log_and_the_blobs(ana: Node) -> None:
    kinds = {row.get("kind") for row in lines(exported(ana, log=False, blobs=False))}
    assert not kinds & {"log", "blob"}
    assert "file" in kinds


def test_S13_content_that_several_files_name_is_exported_once(ana: Node) -> None:
    team(ana).files.share("copy.bin", LARGE)
    assert sum(row.get("kind") == "blob" for row in lines(exported(ana))) == 1


def test_S13_an_export_is_one_state_however_much_is_written_meanwhile(ana: Node) -> None:
    out = io.BytesIO()
    head = ana.log.head().offset

    def write(done: int, total: int) -> None:
        team(ana).state.set("during", done)

    export(ana, out, progress=write)
    assert ana.log.head().offset > head
    rows = lines(out)
    assert rows[0]["head"] == head
    assert max(row["offset"] for row in rows if row.get("kind") == "log") == head
    assert not any(row.get("key") == "during" for row in rows)


# --- and in --------------------------------------------------------------------------------------


def test_S13_what_was_exported_can_be_imported(ana: Node, bob: Node) -> None:
    report = import_(bob, exported(ana))
    there, here = contents(ana), contents(bob)
    # Nobody claims in another's name: a task that ana holds is open for bob.
    there["tasks"] = sorted(
        (title, text, TaskStatus.OPEN if status is TaskStatus.CLAIMED else status)
        for title, text, status in there["tasks"]
    )
    assert here == there
    assert report.counts["state"] == 5
    assert report.counts["deleted"] == 2
    assert report.bad == ()


def test_S13_every_imported_row_gets_a_stamp_of_this_peer_and_one_tick(
    ana: Node, bob: Node
) -> None:
    report = import_(bob, exported(ana))
    entries = list(bob.log.range())
    owned = ("memory.", "vector.", "file.")
    new = [entry for entry in entries if not entry.op.startswith(owned)]
    assert {entry.origin for entry in new} == {"bob"}
    assert [entry.lamport for entry in new] == sorted(entry.lamport for entry in new)
    written = {name: report.counts[name] for name in ("state", "memory", "vector", "file", "fact")}
    for family, count in written.items():
        assert sum(entry.op.startswith(f"{family}.") for entry in entries) == count
    assert team(bob).clock().lamport >= max(entry.lamport for entry in entries)


def test_S6_an_import_takes_what_another_owns_as_that_peer_wrote_it(ana: Node, bob: Node) -> None:
    def in_anas_name(rows: list[Any]) -> None:
        live = (row for row in rows if not row.get("deleted"))
        first = next(row for row in live if row.get("kind") == "memory")
        first["peer"] = "bob"  # as an import of an earlier version left it

    originals = {entry.id: entry for entry in ana.log.range()}
    report = import_(bob, rewritten(exported(ana), in_anas_name))
    assert report.counts["not_theirs"] == 1
    taken = [one for one in bob.log.range() if one.op.startswith(("memory.", "vector.", "file."))]
    assert taken
    for entry in taken:
        first = originals[entry.id]
        assert (entry.origin, entry.lamport) == ("ana", first.lamport)
        assert decode(entry.raw).owner == "ana"
        assert decode(entry.raw).fingerprint == decode(first.raw).fingerprint
    for applied in bob.apply(entry.raw for entry in ana.log.range()):
        assert applied.error is None, "the originals are known as the same changes"


def test_S6_an_import_does_not_undo_what_an_owner_wrote_since(ana: Node, bob: Node) -> None:
    file = exported(ana)
    (key, *_) = [memory.key for memory in team(ana).memory.list()]
    team(ana).memory.set(key, "newer")
    import_(bob, exported(ana))
    assert import_(bob, file).counts["already_here"] > 0
    found = team(bob).memory.get(key, peer="ana")
    assert found is not None
    assert found.value == "newer"


def test_S13_an_imported_value_is_the_newest(ana: Node, bob: Node) -> None:
    bob.create_mesh("team")
    for _ in range(200):
        team(bob).state.set("key-1", "bob's own")
    import_(bob, exported(ana))
    assert team(bob).state.get("key-1") == {"n": 1, "text": "x" * 300}


def test_S13_importing_twice_makes_no_second_task_and_no_second_fact(ana: Node, bob: Node) -> None:
    file = exported(ana)
    import_(bob, file)
    before = contents(bob)
    again = import_(bob, file)
    assert contents(bob) == before
    owned = sum(len(before[name]) for name in ("memory", "vectors", "files"))
    assert again.counts["already_here"] == 5 + 5 + 1 + owned, "and what is ana's"


def test_S13_a_later_export_brings_a_task_further(ana: Node, bob: Node) -> None:
    import_(bob, exported(ana))
    task = next(row for row in team(ana).tasks.list() if row.title == "task 3")
    team(ana).tasks.cancel(task.task)
    import_(bob, exported(ana))
    assert {row.title: row.status for row in team(bob).tasks.list()}["task 3"] == "cancelled"


def test_S13_what_comes_home_finds_its_tasks_and_facts_there(ana: Node) -> None:
    before = contents(ana)
    report = import_(ana, exported(ana))
    assert contents(ana) == before
    assert "task" not in report.counts
    assert "fact" not in report.counts


def test_S13_a_claim_of_our_own_is_claimed_again(ana: Node, tmp_path: Path) -> None:
    file = exported(ana)
    with open_node(tmp_path / "new", peer="ana", create=True) as again:
        import_(again, file)
        claimed = [row for row in team(again).tasks.list() if row.status == "claimed"]
        assert [(row.title, row.claimed_by) for row in claimed] == [("task 0", "ana")]


def test_S13_meshes_can_be_renamed_on_the_way(ana: Node, bob: Node) -> None:
    import_(bob, exported(ana), mesh_map={"team": "copy"})
    assert [row.slug for row in bob.meshes()] == ["copy"]
    assert bob.mesh("copy").state.get("key-1") == {"n": 1, "text": "x" * 300}
    with pytest.raises(BadInput):
        import_(bob, exported(ana), mesh_map={"team": "Not A Name"})


def test_S13_a_file_whose_content_is_not_in_the_export_is_counted_not_made(
    ana: Node, bob: Node
) -> None:
    report = import_(bob, exported(ana, blobs=False))
    assert report.counts["without_content"] == 1
    assert ("ana", "large.bin") not in contents(bob)["files"]


def objects_of(node: Node) -> dict[str, tuple[bytes, ...]]:
    """Subject and content of the objects of every fact that names some."""
    found = {}
    for entry in node.log.range():
        body = decode_trusted_body(decode_trusted(entry.raw))
        if isinstance(body, Fact) and body.objects:
            blobs = node._engine.blobs
            found[entry.entity] = tuple(blobs.read(digest.hex()) for digest in body.objects)
    return found


@pytest.mark.parametrize("take_in", [import_, import_log], ids=["rows", "log"])
def test_S13_the_objects_of_facts_travel_with_them(
    ana: Node, bob: Node, take_in: Callable[..., Any]
) -> None:
    contents = {"big": (LARGE, b"small"), "none": (b"",), "same": (b"small",)}
    for subject, objects in contents.items():
        named = [ana.receive_blob(content) for content in objects]
        team(ana).facts.append(subject, "shows", 1, objects=named)
    out = exported(ana)
    assert sum(row.get("kind") == "blob" for row in lines(out)) == 3
    take_in(bob, out)
    assert objects_of(bob) == contents
    bob.sweep(Ttl(blob_ms=0, orphan_ms=0))
    assert objects_of(bob) == contents
    report = import_(bob, exported(ana))
    assert "fact" not in report.counts


def test_S13_a_fact_whose_objects_are_not_in_the_export_is_counted_not_made(
    ana: Node, bob: Node
) -> None:
    team(ana).facts.append("s", "shows", 1, objects=[ana.receive_blob(b"picture")])
    report = import_(bob, exported(ana, blobs=False))
    assert report.counts["without_content"] == 2
    assert objects_of(bob) == {}


# --- interruptions -------------------------------------------------------------------------------


class Interrupted(Exception):
    """The process ended here."""


def interrupt_after(monkeypatch: pytest.MonkeyPatch, engine: NodeEngine, writes: int) -> None:
    real, left = engine.write, [writes]

    def write(name: str, work: Any) -> Any:
        if left[0] == 0:
            raise Interrupted
        left[0] -= 1
        return real(name, work)

    monkeypatch.setattr(engine, "write", write)


@pytest.mark.parametrize("writes", [0, 1, 3, 6])
def test_S13_an_interrupted_import_goes_on_and_doubles_nothing(
    ana: Node, bob: Node, monkeypatch: pytest.MonkeyPatch, writes: int
) -> None:
    monkeypatch.setattr(limits, "CHUNK_ROWS", 4)
    file = exported(ana)
    with monkeypatch.context() as patch:
        interrupt_after(patch, bob._engine, writes)
        with pytest.raises(Interrupted):
            import_(bob, file)
    report = import_(bob, file)
    assert bool(report.resumed_after) == bool(writes)
    ops = [(entry.op, entry.entity) for entry in bob.log.range() if "task" not in entry.op]
    assert len(ops) == len(set(ops)), "no row was written twice"
    assert report.counts["state"] == 5, "what the first try wrote counts too"
    assert contents(bob)["files"] == contents(ana)["files"]
    # It is done, so nothing waits any more.
    digest = lines(file)[-1]["sha256"]
    assert bob._engine.read("job", lambda tx: tx.job_get(f"import:{digest}")) is None


def test_S13_a_half_imported_file_is_not_finished_under_other_names(
    ana: Node, bob: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "CHUNK_ROWS", 4)
    file = exported(ana)
    with monkeypatch.context() as patch:
        interrupt_after(patch, bob._engine, 2)
        with pytest.raises(Interrupted):
            import_(bob, file)
    with pytest.raises(BadValue, match="other mesh names"):
        import_(bob, file, mesh_map={"team": "copy"})


def test_S13_two_who_import_the_same_file_do_not_write_it_twice(
    ana: Node, bob: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "CHUNK_ROWS", 4)
    file = exported(ana)
    digest = lines(file)[-1]["sha256"]

    def other(done: int, total: int) -> None:
        cursor = {"line": 1000, "counts": {}, "mesh_map": {}}
        row = JobRow(name=f"import:{digest}", cursor=cursor, updated_at=0)
        bob._engine.write("other", lambda tx: tx.job_put(row))

    with pytest.raises(StoreBusy):
        import_(bob, file, progress=other)


# --- files that are not whole, or not right ------------------------------------------------------


@pytest.mark.parametrize("keep", [0.0, 0.2, 0.5, 0.9, 0.999])
def test_S13_a_file_that_was_cut_is_refused_before_the_first_write(
    ana: Node, bob: Node, keep: float
) -> None:
    whole = exported(ana).getvalue()
    with pytest.raises(BadValue):
        import_(bob, io.BytesIO(whole[: int(len(whole) * keep)]))
    with pytest.raises(BadValue):
        import_log(bob, io.BytesIO(whole[: int(len(whole) * keep)]))
    assert bob.meshes() == []


def test_S13_a_file_that_lost_lines_or_was_changed_is_refused_before_the_first_write(
    ana: Node, bob: Node
) -> None:
    whole = exported(ana).getvalue()
    rows = whole.splitlines(keepends=True)
    for harmed in (
        b"".join(rows[:3] + rows[4:]),
        whole.replace(b'"x', b'"y', 1),
        b"".join([rows[0], rows[2], rows[1], *rows[3:]]),
    ):
        with pytest.raises(BadValue, match="changed or damaged"):
            import_(bob, io.BytesIO(harmed))
    assert bob.meshes() == []


def test_S13_what_is_no_export_is_said_to_be_none(bob: Node) -> None:
    for other in (b"", b"hello\n", b'{"kind":"state"}\n', b"\xff\xfe\n", b"[]\n"):
        with pytest.raises(BadValue):
            import_(bob, io.BytesIO(other))
    with pytest.raises(UnsupportedProtocol):
        import_(bob, io.BytesIO(b'{"holdfast":"export","version":2}\n'))


def test_S13_a_source_that_can_be_read_once_only_is_refused(bob: Node) -> None:
    class Pipe(io.RawIOBase):
        def seekable(self) -> bool:
            return False

    with pytest.raises(BadValue, match="once only"):
        import_(bob, cast(BinaryIO, Pipe()))


def test_S13_a_bad_line_is_named_and_nothing_of_its_chunk_is_written(
    ana: Node, bob: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "CHUNK_ROWS", 4)

    def harm(rows: list[Any]) -> None:
        states = [index for index, row in enumerate(rows) if row.get("kind") == "state"]
        rows[states[4]]["key"] = ""

    file = rewritten(exported(ana), harm)
    number = 1 + [row.get("key") for row in lines(file)].index("")
    with pytest.raises(BadKey, match=rf"^line {number}: "):
        import_(bob, file)
    # mesh and three states were the first chunk; the fourth state shared the bad one's.
    assert len(list(team(bob).state.list())) == 3
    report = import_(bob, file, skip_bad=True)
    assert [(bad.line, bad.code) for bad in report.bad] == [(number, "bad_key")]
    assert len(list(team(bob).state.list())) == 4


def test_S13_bad_lines_of_every_kind_are_skipped_one_by_one(ana: Node, bob: Node) -> None:
    def harm(rows: list[Any]) -> None:
        seen: set[str] = set()
        for row in rows[1:]:
            kind = row["kind"]
            if kind in seen or row.get("deleted") or row.get("path") == "large.bin":
                continue
            seen.add(kind)
            if kind == "memory":
                row["owner"] = ""
            elif kind == "vector":
                row["embedding"] = "AAAA"
            elif kind == "file":
                row["mesh"] = "nowhere"
            elif kind == "task":
                row["status"] = "lost"
            elif kind == "fact":
                row["object"] = "\0"
            elif kind == "state":
                del row["value"]
            elif kind == "blob":
                row["data"] = "AAAA"

    file = rewritten(exported(ana), harm)
    report = import_(bob, file, skip_bad=True)
    assert len(report.bad) == 7
    assert report.counts["without_content"] == 1, "the blob was bad"
    there = contents(bob)
    assert [len(there[name]) for name in ("state", "memory", "vectors", "tasks", "facts")] == [
        4
    ] * 5
    with pytest.raises(BadInput):
        import_(bob, file)


def test_S13_a_blob_whose_parts_are_mixed_up_is_bad_and_the_line_after_it_is_not(
    ana: Node, bob: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.node.exchange.export.EXPORT_PART_BYTES", 50_000)
    file = exported(ana)
    assert sum(row.get("kind") == "blob" for row in lines(file)) == 3

    def drop_second_part(rows: list[Any]) -> None:
        rows[:] = [row for row in rows if row.get("part") != 1]

    report = import_(bob, rewritten(file, drop_second_part), skip_bad=True)
    assert [bad.code for bad in report.bad] == ["bad_value", "bad_value"]
    assert report.counts["without_content"] == 1
    assert report.counts["file"] == 5
    assert import_(bob, file).counts["file"] == 1, "the others are here as ana wrote them"
    assert team(bob).files.read("large.bin", peer="ana") == LARGE


def test_S13_an_import_gives_up_where_almost_all_is_bad(
    ana: Node, bob: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "IMPORT_BAD_LINES_MAX", 2)

    def harm(rows: list[Any]) -> None:
        for row in rows:
            if row.get("kind") == "vector":
                row["embedding"] = "AAAA"

    with pytest.raises((OverLimit, BadVector)):
        import_(bob, rewritten(exported(ana), harm), skip_bad=True)


# --- the log -------------------------------------------------------------------------------------


def test_S13_two_homes_exchange_their_logs_by_file(ana: Node, bob: Node) -> None:
    bob.create_mesh("team")
    team(bob).state.set("key-1", "bob's")
    team(bob).memory.set("thing", "bob's")
    first, second = exported(ana), exported(bob)
    assert import_log(bob, first).refused == ()
    assert import_log(ana, second).refused == ()
    one, other = snapshot(ana._engine.store), snapshot(bob._engine.store)
    assert differences(one, other) == []
    assert team(bob).files.read("large.bin", peer="ana") == LARGE
    again = import_log(bob, first)
    assert set(again.counts) == {"noop_already_applied"}


def test_S13_an_envelope_that_is_refused_is_told_with_its_line(ana: Node, bob: Node) -> None:
    def harm(rows: list[Any]) -> None:
        row = next(row for row in rows if row.get("kind") == "log")
        row["raw"] = "AAAA"

    file = rewritten(exported(ana), harm)
    number = 1 + [row.get("raw") for row in lines(file)].index("AAAA")
    report = import_log(bob, file)
    assert [(bad.line, bad.code) for bad in report.refused] == [(number, "bad_envelope")]
    assert report.counts["refused"] == 1
