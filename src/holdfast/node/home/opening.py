"""Opening and closing a home.

Opening looks, in this order, at: who owns the files and their modes; who else has the home open;
whether the last process ended uncleanly (then the integrity check runs first); the schema; and
whether the database has gone back in time, in which case its log counts on in a new epoch. None of
it grows with the number of rows, except the check after an end that may have damaged the file: one
after which the machine went on with every byte that was written is checked where it wrote last
(docs/decisions/0108). What looks after a bad end is imported there: most opens find a good one.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from time import monotonic, perf_counter
from typing import TYPE_CHECKING

import msgspec

from holdfast.node.core.context import NodeContext
from holdfast.node.core.engine import NodeEngine
from holdfast.node.core.metrics import Metrics
from holdfast.node.home.left_open import Drop, close_at_the_end, close_dropped, closed
from holdfast.rules import limits
from holdfast.rules.errors import (
    AlreadyExists,
    BadPeerId,
    DiskFull,
    HoldfastError,
    NoHome,
    StoreCorrupt,
)
from holdfast.rules.names import meant_peer, named_peer
from holdfast.service.clock import Clock, SystemClock
from holdfast.storage.files import backup_lock
from holdfast.storage.files import home as homes
from holdfast.storage.files import presence as presences
from holdfast.storage.files.blobs import FileBlobs
from holdfast.storage.files.durable import disk_errors, durable_replace
from holdfast.storage.files.home import HomePaths
from holdfast.storage.files.presence import Holder, Presence
from holdfast.storage.sqlite.connection import sync_mode
from holdfast.storage.sqlite.store import SqliteStore

if TYPE_CHECKING:
    from holdfast.storage.ports import Reader, Transaction
    from holdfast.storage.sqlite.recovery.wal_frames import WalEnd

log = logging.getLogger("holdfast")


class LogMark(msgspec.Struct, frozen=True):
    """How far the log was, in a file beside the database: a database that shows less has gone back
    in time.
    """

    epoch: int
    offset: int
    volatile: bool = False
    """A process writes with `normal` sync: a power cut may undo what readers have seen."""


class Opened:
    """A home that is open: its engine, and what closing needs."""

    def __init__(
        self, paths: HomePaths, store: SqliteStore, engine: NodeEngine, presence: Presence
    ) -> None:
        self.paths, self.store, self.engine = paths, store, engine
        self._presence = presence
        self.open_ms = 0.0
        self._closed = False
        # Whoever holds the engine, by any family of the node, holds what closes the home.
        engine.opened = self
        self._drop: Drop | None = None

    def close_at_the_end(self) -> None:
        """LeftOpen the home when the program ends, unless somebody did it before."""
        self._drop = close_at_the_end(self, partial(_close_dropped, self.store, self._presence))

    def close(self) -> None:
        """Waits for writes, sweeps blobs if time permits, and closes: in ten seconds at most. If it
        is interrupted, another call finishes it.
        """
        if self._closed or self.store.forked:
            return  # a forked child has nothing to close
        self._forget_drop()
        deadline = monotonic() + limits.SHUTDOWN_MS_MAX / 1000
        clean = True
        try:
            self._last_sweep()
            self._mark()
        except HoldfastError as error:
            # Closing must not fail because the disk does; no data is lost here.
            log.warning("closing %s: %s", self.paths.root, error.message)
            clean = False
        finally:
            done = self.store.stop(max(0.0, deadline - monotonic()))
            if not done:
                log.warning(
                    "closing %s took too long; the next start checks the database", self.paths.root
                )
                self._presence.doubt()
            else:
                self._go(clean)
        self._closed = True

    def _go(self, clean: bool) -> None:
        """Removes our registration; after a bad end it stays, so that the next start checks."""
        if not clean:
            self._presence.doubt()
            self._presence.vanish()
            return
        try:
            self._presence.leave()
        except HoldfastError as error:
            log.warning("closing %s: %s", self.paths.root, error.message)

    def abandon(self) -> None:
        """Leaves everything as a killed process does. For simulations, whose disk has failed before
        this is called.
        """
        self._closed = True
        self._forget_drop()
        self._presence.vanish()
        self.store.abort()

    def close_left(self) -> None:
        """At the end of a program that has not closed it, and may have removed its folder."""
        if self.paths.database.exists():
            self.close()
        else:
            self.abandon()

    def _forget_drop(self) -> None:
        if self._drop is not None:
            closed(self._drop)

    def _last_sweep(self) -> None:
        if not self.engine.read("sweep", lambda tx: tx.blob_released(1)):
            return
        # Here, because most homes that are closed have nothing to remove.
        from holdfast.node.settings import load
        from holdfast.node.upkeep.sweep import Ttl, collect_blobs

        try:
            ttl = Ttl.of_settings(load(os.environ, {}).retention)
        except HoldfastError as error:
            # How long blobs are to be kept, nobody knows; a sweep that says so removes them later.
            log.warning(
                "blobs of %s are left to the next sweep: %s", self.paths.root, error.message
            )
            return
        patience_s = limits.SHUTDOWN_SWEEP_MS_MAX / 1000
        # If a write hangs, the sweep would wait behind it without end.
        if self.store.writer.between_groups(lambda: None, patience_s):
            collect_blobs(self.engine, ttl, deadline_s=monotonic() + patience_s)

    def _mark(self) -> None:
        mark = self.engine.read("log.head", _position)
        if _names(self.paths, self._presence):
            known = read_mark(self.paths)  # other processes go on, perhaps with normal sync
            mark = LogMark(mark.epoch, mark.offset, known is not None and known.volatile)
        _write_mark(self.paths, mark)
        try:
            self.engine.metrics.end()
        except DiskFull as error:
            log.info("closing %s: %s", self.paths.root, error.message)  # nothing but counts is lost


def open_home(
    home: str | Path | None,
    *,
    peer: str | None = None,
    create: bool = False,
    sync: str | None = None,
    source: Clock | None = None,
    vfs: str | None = None,
    nudges: bool = True,
    wakes_daemon: bool = True,
    new_epoch: bool = False,
    environ: Mapping[str, str] = os.environ,
) -> Opened:
    """Opens a home, and creates it first with `create`. With `nudges` every commit of this process
    wakes whoever waits for one, the home's daemon too unless this is it. With `new_epoch` the log
    counts on in a new epoch, because another copy of this home may count on in the present one.
    """
    begun = perf_counter()
    close_dropped()
    mode = sync_mode(sync, environ.get("HOLDFAST_STORE_SYNC"))
    root = homes.resolve_home(home, environ)
    paths = _find(root, peer, create)
    for mended in homes.check_modes(paths):
        log.warning("%s", mended)
    crashed = presences.unclean(paths)
    left_log = presences.left_log(paths)
    presence = Presence.at(paths)
    try:
        presence.appear(full_disk=True)
        unclean = bool(crashed) or left_log
        if unclean:
            _check_after_end(paths, crashed, left_log, vfs)
        opened = _open_store(
            paths, peer, mode, source or SystemClock(), vfs, presence, unclean, new_epoch
        )
        try:
            presences.clear_unclean(paths, crashed)
            if vfs is None:  # else a disk of its own, which knows of no machine that goes on
                presence.vouch(paths.database)
                opened.close_at_the_end()
            if nudges:
                opened.store.on_commit(_Nudge(paths, wakes_daemon=wakes_daemon))
            opened.engine.wake_folder = partial(homes.watchers_folder, paths, make=True)
            opened.open_ms = (perf_counter() - begun) * 1000
            if vfs is None:
                now_ms = opened.engine.ctx.now_ms
                opened.engine.metrics.begin(paths.metrics, now_ms, opened.open_ms)
            return opened
        except BaseException:
            opened.store.abort()
            raise
    except BaseException:
        presence.leave()
        raise


class _Nudge:
    """After each commit of this process: wakes the daemon of its home, if there is one, and other
    readers that wait.
    """

    def __init__(self, paths: HomePaths, *, wakes_daemon: bool) -> None:
        self._paths = paths
        self._wakes_daemon = wakes_daemon
        self._wake: Path | None = None
        self._watchers = homes.watchers_folder(paths)

    def __call__(self) -> None:
        if self._wakes_daemon:
            if self._wake is None:
                self._wake = self._find()
            if os.path.exists(self._wake):
                # Imported only here: most commands run without a daemon.
                from holdfast.transport.unix_socket import notify_daemon

                notify_daemon(self._wake)
        if os.path.exists(self._watchers):
            from holdfast.node.watching.watcher_sockets import ring_watchers

            ring_watchers(self._watchers)

    def _find(self) -> Path:
        try:
            return homes.wake_path(self._paths)
        except HoldfastError as error:
            log.warning("the daemon of %s is not woken: %s", self._paths.root, error.message)
            return self._paths.wake


def _find(root: Path, peer: str | None, create: bool) -> HomePaths:
    try:
        return homes.require_home(root)
    except NoHome:
        if not create:
            raise
    if peer is None:
        raise BadPeerId("a new home needs the name of its peer", hint="give peer='NAME'")
    try:
        return homes.create_home(root, named_peer(peer))
    except AlreadyExists:
        with suppress(NoHome):
            return homes.require_home(root)  # another process created it first
        raise


def _open_store(
    paths: HomePaths,
    peer: str | None,
    mode: str,
    source: Clock,
    vfs: str | None,
    presence: Presence,
    unclean: bool,
    new_epoch: bool,
) -> Opened:
    _make_database(paths)
    store = SqliteStore(
        paths.database,
        sync=mode,
        vfs=vfs,
        holders=lambda: _names(paths, presence),
        troubled=presence.doubt,
    )
    try:
        homes.check_modes(paths)
        now_ms = source.now_ms()
        name, mark = store.write(lambda tx: _identify(tx, paths, peer, unclean, new_epoch, now_ms))
        if mode == "normal":
            _note_normal_sync(paths, mark, store)
        ctx = NodeContext(name, mark.epoch, source, FileBlobs(paths.blobs))
        engine = NodeEngine(store, ctx, Metrics(), lambda: backup_lock.free(paths))
        engine.is_kept = partial(_is_kept, paths.root)
        return Opened(paths, store, engine, presence)
    except BaseException:
        store.abort()
        raise


def _make_database(paths: HomePaths) -> None:
    """Creates the database file with its mode, which SQLite copies to WAL and shared memory.

    Never opens one that is there: closing a file that SQLite has open here would drop its locks.
    """
    with disk_errors(f"create {paths.database}"), suppress(FileExistsError):
        os.close(os.open(paths.database, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))


def _identify(
    tx: Transaction,
    paths: HomePaths,
    peer: str | None,
    unclean: bool,
    new_epoch: bool,
    now_ms: int,
) -> tuple[str, LogMark]:
    """The home's peer, fixed when it was created, and how far its log is."""
    name = tx.peer_name()
    if name is None:
        if peer is None:
            raise NoHome(f"the home in {paths.root} was never finished")
        name = named_peer(peer)
        tx.set_peer_name(name)
    elif peer is not None and meant_peer(peer) != name:
        raise AlreadyExists(
            f"the home in {paths.root} belongs to peer {name!r}, not {peer!r}",
            hint="leave the peer out, or choose another home",
        )
    found = _position(tx)
    known = read_mark(paths)
    back = known is not None and (found.epoch, found.offset) < (known.epoch, known.offset)
    if new_epoch:
        last = max(found.epoch, 0 if known is None else known.epoch)
        mark = LogMark(last + 1, found.offset)
        return name, _count_on(tx, paths, mark, limits.RESTORE_LAMPORT_SKIP, now_ms)
    if known is not None and (back or (unclean and known.volatile)):
        log.warning(
            "the log of %s has gone back from %s to %s; it counts on in a new epoch"
            if back
            else "the log of %s may have gone back since %s, it ends at %s; it counts on in a new "
            "epoch",
            paths.root,
            (known.epoch, known.offset),
            (found.epoch, found.offset),
        )
        skip = limits.RESTORE_LAMPORT_SKIP if back else limits.CRASH_LAMPORT_SKIP
        found = _count_on(tx, paths, LogMark(known.epoch + 1, found.offset), skip, now_ms)
    return name, found


def _count_on(tx: Transaction, paths: HomePaths, mark: LogMark, skip: int, now_ms: int) -> LogMark:
    """The log counts on in the epoch of `mark`."""
    from holdfast.rules.lamport import after_loss

    tx.set_epoch(mark.epoch)
    for mesh in tx.mesh_list():
        # Other nodes have stamps that this database does not: this node must not give them again.
        tx.clock_raise(mesh.slug, after_loss(mesh.lamport, skip, now_ms))
    # Not only at closing: after a second bad end the log must not count on in this epoch again.
    _write_mark(paths, mark)
    return mark


def _position(tx: Reader) -> LogMark:
    return LogMark(tx.epoch(), tx.log_bounds()[1])


def read_mark(paths: HomePaths) -> LogMark | None:
    """How far the log is known to have been, from the file that outlives the database."""
    try:
        return msgspec.json.decode(paths.mark.read_bytes(), type=LogMark)
    except FileNotFoundError:
        return None
    except msgspec.DecodeError:
        log.warning("%s cannot be read", paths.mark)
        return None


def _write_mark(paths: HomePaths, mark: LogMark) -> None:
    if read_mark(paths) != mark:
        durable_replace(paths.mark, msgspec.json.encode(mark))


def _note_normal_sync(paths: HomePaths, mark: LogMark, store: SqliteStore) -> None:
    try:
        _write_mark(paths, LogMark(mark.epoch, mark.offset, volatile=True))
    except DiskFull as error:
        # Without the note a power cut could undo unseen what readers had: so each write is synced.
        log.warning("%s: %s", paths.root, error.message)
        store.sync_fully()


def _names(paths: HomePaths, presence: Presence) -> str:
    others = [holder for holder in presences.others(paths) if holder.name != presence.path.name]
    return ", ".join(f"process {holder.pid} ({holder.command})" for holder in others)


def _close_dropped(store: SqliteStore, presence: Presence) -> None:
    """LeftOpen a home that nobody holds any more."""
    if store.forked:
        return
    if store.stop(limits.SHUTDOWN_MS_MAX / 1000):
        presence.leave()


def _refuse_harmed_wal(paths: HomePaths) -> WalEnd:
    """A log that ends too early takes acknowledged writes with it, and SQLite says nothing. One
    commit after the break may be what a power cut tore; a later one proves that the one before it
    was whole once, unless somebody wrote with `normal` sync.
    """
    from holdfast.storage.sqlite.recovery.wal_frames import look_at_wal

    mark = read_mark(paths)
    end = look_at_wal(paths.wal)
    if end.commits > 1 and not (mark is not None and mark.volatile):
        raise StoreCorrupt(
            f"{paths.wal} is damaged after {end.frames} frames, and {end.commits} commits follow "
            "that SQLite would drop"
        )
    return end


def _check_after_end(
    paths: HomePaths, crashed: Sequence[Holder], left_log: bool, vfs: str | None
) -> None:
    """Looks at a home that was not closed, as closely as what is known of its end asks for."""
    killed = vfs is None and presences.only_killed(paths, crashed)
    if left_log:
        from holdfast.storage.sqlite.recovery.wal import rewrite_wal

        killed = _refuse_harmed_wal(paths).beyond == 0 and killed
        rewrite_wal(paths.database, paths.wal, vfs=vfs)
    if not paths.database.exists():
        return  # a creation was interrupted
    if killed:
        _check_after_kill(paths)
    else:
        _check_after_crash(paths, vfs)


def _check_after_kill(paths: HomePaths) -> None:
    """The machine went on, so the system has every byte that was written, in order: the log of
    SQLite ends after a whole commit, which was looked at, and what is not in it was not touched.
    """
    log.warning("%s was not closed cleanly; what was written last is whole", paths.root)
    from holdfast.storage.sqlite.integrity import newest_integrity

    problems = newest_integrity(paths.database)
    if problems:
        raise StoreCorrupt(f"{paths.database} does not pass its check: {problems[0]}")


def _check_after_crash(paths: HomePaths, vfs: str | None) -> None:
    log.warning("%s was not closed cleanly; checking its database", paths.root)
    from holdfast.storage.sqlite.integrity import integrity

    problems = integrity(paths.database, vfs=vfs)
    if problems:
        raise StoreCorrupt(f"{paths.database} does not pass its check: {problems[0]}")


def _is_kept(root: Path, sha256: str) -> bool:
    """Whether a copy of an older database beside this one names a blob."""
    from holdfast.storage.sqlite.recovery.kept_copies import names_blob

    return names_blob(root, sha256)
