"""Opens the file of the Raft logs, and says which groups must rejoin.

The order matters. First comes what a bad end left in the WAL: it is written and synced once more
(`recovery.wal`), unless commits in it are lost. Then the rows are checked, all of them if the last
end was not a clean one. Then they are compared with the mark and with what the home's own database
knows. Doubt about a group is committed before anything else, and the new opening noted in the mark.

A file that SQLite cannot read is kept under another name, and a new one begins in which all groups
that are known must rejoin. Nothing is ever removed.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

import apsw
from msgspec.structs import replace

from holdfast.rules.errors import NewerSchema, StoreCorrupt
from holdfast.rules.quorum.log_rows import (
    TAKES_PART,
    GroupRow,
    HardStateRow,
    KnownGroup,
    LogHead,
    Standing,
)
from holdfast.rules.quorum.log_saves import raised
from holdfast.storage.files.durable import FILE_MODE, disk_errors
from holdfast.storage.files.home import HomePaths, size_of, status_of
from holdfast.storage.sqlite import migrations
from holdfast.storage.sqlite.connection import check_ours, connect, managed, shut, typed
from holdfast.storage.sqlite.quorum.check import PACKAGE, damaged_groups
from holdfast.storage.sqlite.quorum.mark import (
    MarkedGroup,
    QuorumMark,
    marked,
    read_quorum_mark,
    why_doubt_group,
    why_doubt_known,
    why_doubt_store,
    write_quorum_mark,
)
from holdfast.storage.sqlite.quorum.rows import DAMAGED_HEAD, Card
from holdfast.storage.sqlite.quorum.writes import QuorumWrites
from holdfast.storage.sqlite.recovery.swap import fresh_label, move_raft_logs
from holdfast.storage.sqlite.recovery.wal import rewrite_wal
from holdfast.storage.sqlite.recovery.wal_frames import look_at_wal

log = logging.getLogger("holdfast")

LATEST: Final = 1
"""The version of the schema that this code writes."""
_MISSING: Final = "its Raft log is missing: this home was restored, or lost the file"


class QuorumOpening(NamedTuple):
    """What an opening is told."""

    paths: HomePaths
    known: Sequence[KnownGroup]
    sync: str
    vfs: str | None
    file_number: Callable[[Path], int]
    random: Callable[[int], bytes]


def open_rows(opening: QuorumOpening) -> tuple[apsw.Connection, QuorumMark]:
    """A connection to write with, and the mark as it is now. The caller has the lock."""
    paths = opening.paths
    mark = read_quorum_mark(paths.quorum_mark)
    harm: str | None = None
    unclean = mark is None or not mark.clean or size_of(paths.quorum_wal) > 0
    try:
        harm = _settle_wal(opening)
        connection, problems = _connect(opening, check=unclean)
    except StoreCorrupt as error:
        harm = error.message
        _set_aside(paths)
        connection, problems = _connect(opening, check=False)
    try:
        found = _begin(connection, opening, mark, harm, problems)
        write_quorum_mark(paths.quorum_mark, found)
    except BaseException as error:
        shut(connection)
        raise typed(error) from error
    return connection, found


def _settle_wal(opening: QuorumOpening) -> str | None:
    """Makes sure of the WAL; returns why commits in it are lost, if they are."""
    paths = opening.paths
    if status_of(paths.quorum) is None:
        if size_of(paths.quorum_wal):
            _set_aside(paths)  # it would be played into the new database
        with disk_errors(f"create {paths.quorum}"), suppress(FileExistsError):
            # Before SQLite does: its other files get the mode of this one.
            os.close(os.open(paths.quorum, os.O_WRONLY | os.O_CREAT | os.O_EXCL, FILE_MODE))
        return None
    if not size_of(paths.quorum_wal):
        return None
    # A power cut tears one commit at most, since each is synced before the next begins.
    lost = look_at_wal(paths.quorum_wal).commits
    if opening.sync == "full":
        rewrite_wal(paths.quorum, paths.quorum_wal, vfs=opening.vfs)
    return f"{lost} commits in {paths.quorum_wal} are damaged" if lost > 1 else None


def _connect(opening: QuorumOpening, *, check: bool) -> tuple[apsw.Connection, dict[str, str]]:
    connection = connect(opening.paths.quorum, sync=opening.sync, vfs=opening.vfs)
    managed(connection)
    try:
        check_ours(connection)
        # Nothing is written before the commit: what meets a full disk is then the whole group.
        connection.pragma("cache_spill", 0)
        version = migrations.version(connection)
        if version > LATEST:
            raise NewerSchema(
                f"{opening.paths.quorum} has schema version {version}; this Holdfast knows {LATEST}"
            )
        if version < LATEST:
            migrations.migrate(connection, migrations.load(PACKAGE))
        return connection, damaged_groups(connection) if check else {}
    except apsw.SQLError as error:
        shut(connection)
        raise StoreCorrupt(f"the schema of {opening.paths.quorum} is damaged: {error}") from error
    except BaseException as error:
        shut(connection)
        raise typed(error) from error


def _set_aside(paths: HomePaths) -> None:
    """Keeps what is there under other names."""
    label = fresh_label(paths.root, "corrupt", time.time_ns() // 1_000_000)
    for kept in move_raft_logs(paths, label):
        log.error("the Raft logs are damaged and kept as %s; new ones begin", kept)


# --- doubt -------------------------------------------------------------------------------------


def _begin(
    connection: apsw.Connection,
    opening: QuorumOpening,
    mark: QuorumMark | None,
    harm: str | None,
    problems: dict[str, str],
) -> QuorumMark:
    """Commits what is doubted, and counts the opening."""
    file = opening.file_number(opening.paths.quorum)
    connection.execute("BEGIN IMMEDIATE")
    try:
        rows = QuorumWrites(connection)
        store, generation = rows.meta("store"), int(rows.meta("generation") or 0)
        doubt = harm
        if doubt is None and store is not None:
            doubt = why_doubt_store(str(store), generation, file, mark)
        _judge_groups(rows, mark, opening.known, doubt, problems)
        _add_missing(rows, mark, opening.known, harm or _MISSING)
        if store is None or doubt is not None:
            store = opening.random(16).hex()
            generation = max(generation, 0 if mark is None else mark.generation)
        else:
            assert mark is not None, "else it is in doubt"
            generation = mark.generation
        rows.note("store", store)
        rows.note("generation", generation + 1)
        rows.flush()
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    return QuorumMark(
        store=str(store),
        generation=generation + 1,
        clean=False,
        file=file,
        groups=marked(rows.cards().values()),
    )


def _judge_groups(
    rows: QuorumWrites,
    mark: QuorumMark | None,
    known: Sequence[KnownGroup],
    doubt: str | None,
    problems: dict[str, str],
) -> None:
    others = {group.scope: group for group in known}
    for scope, card in list(rows.cards().items()):
        was = None if mark is None else mark.groups.get(scope)
        reason = doubt or problems.get(scope)
        if reason is None and card.group.reason == DAMAGED_HEAD:
            reason = DAMAGED_HEAD
        if reason is None and was is not None:
            reason = why_doubt_group(card, rows.voters_used(scope), was)
        if reason is None and scope in others:
            reason = why_doubt_known(card, rows.voters_used(scope), others[scope])
        if reason is not None:
            if card.group.standing in TAKES_PART or reason == DAMAGED_HEAD:
                log.error("this node must rejoin the voters of %s: %s", scope, reason)
            rows.condemn(scope, reason, _no_lower(card, was))


def _no_lower(card: Card, was: MarkedGroup | None) -> LogHead:
    """Terms and numbers of writes never fall, also where a log went back."""
    if was is None:
        return card.head
    head = raised(card.head, HardStateRow(term=was.term, vote=was.vote))
    return replace(head, written=max(head.written, was.written))


def _add_missing(
    rows: QuorumWrites, mark: QuorumMark | None, known: Sequence[KnownGroup], reason: str
) -> None:
    """Groups that should be here and are not."""
    for scope, was in ({} if mark is None else mark.groups).items():
        if scope not in rows.cards():
            head = LogHead(term=was.term, vote=was.vote, written=was.written)
            _add(rows, scope, was, reason, head)
    for group in known:
        if group.scope not in rows.cards():
            _add(rows, group.scope, group, reason, LogHead(term=group.term))
        rows.note_voter(group.scope, group.voter)


def _add(
    rows: QuorumWrites, scope: str, was: MarkedGroup | KnownGroup, reason: str, head: LogHead
) -> None:
    standing: Standing = "must_rejoin"
    if isinstance(was, MarkedGroup) and was.standing not in TAKES_PART:
        standing = was.standing
    log.error("this node must rejoin the voters of %s: %s", scope, reason)
    group = GroupRow(
        scope=scope,
        incarnation=was.incarnation,
        tag=was.tag,
        voter=was.voter,
        standing=standing,
        reason=reason if standing == "must_rejoin" else "",
    )
    rows.add(group, head)
