"""What audits must find, said once more in plain Python: loops over rows, one rule at a time.

It shares nothing with `holdfast.pipeline.audits`: no sorting of columns, no runs, no shares.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from datetime import timedelta
from itertools import pairwise
from typing import Any

import msgspec

from holdfast.rules.audit_chain import AuditRow, is_whole
from holdfast.rules.bodies import AuditAppend
from holdfast.rules.envelope import decode_trusted
from support.audit_world import Row, World

Said = tuple[Any, ...]
"""Audit, severity, mesh, log, epoch, offset, origin, entity, id, detail."""
COLUMNS = ("mesh", "log", "epoch", "offset", "origin", "entity", "id")
FORGED = ("bad_signature", "forged_origin", "not_trusted", "zone_not_trusted", "key_expired")
LEAP = 2**48


def said(audit: str, severity: str, detail: str, row: Row, *columns: str, **known: Any) -> Said:
    shown = {name: row.get(name) for name in columns or COLUMNS} | known
    return (audit, severity, *(shown.get(name) for name in COLUMNS), detail)


PLACE_ID = ("log", "epoch", "offset", "id")


def everything(world: World, consumer: str) -> list[Said]:
    return [
        *orphans(world),
        *offsets(world),
        *numbers(world),
        *own_order(world),
        *fences(world),
        *chains(world),
        *frontiers(world, consumer),
        *claims(world),
        *refusals(world),
        *hot_spots(world),
    ]


def orphans(world: World) -> Iterator[Said]:
    bronze, again = world.rows["bronze"], world.rows["sightings"]
    copies = Counter(row["id"] for row in bronze)
    places = Counter((row["log"], row["epoch"], row["offset"]) for row in [*bronze, *again])
    for row in [*bronze, *again]:
        times = copies[row["id"]]
        if times != 1:
            detail = f"bronze has it {times} times"
            if not times:
                detail = "it was seen again here, and bronze does not have it"
            yield said("orphans", "finding", detail, row, *PLACE_ID)
        if (times := places[row["log"], row["epoch"], row["offset"]]) > 1:
            detail = f"this place was read {times} times"
            yield said("orphans", "finding", detail, row, *PLACE_ID)
    for row in world.rows["quarantine"]:
        if row["reason"] == "id_conflict":
            first = [known for known in bronze if known["id"] == row["id"]]
            before = " is known"
            known: Row = {}
            if first:
                known = first[0]
                before = f" was seen first at offset {known['offset']} of log {known['log']}"
            detail = f"the same id with other bytes{before}: {row['detail']}"
            about = {name: known.get(name) for name in ("mesh", "origin", "entity")}
            yield said("orphans", "finding", detail, {**row, **about})


def offsets(world: World) -> Iterator[Said]:
    partly = {log.log for log in world.logs if not log.whole}
    places: dict[tuple[str, int], list[tuple[int, str | None]]] = defaultdict(list)
    for name in ("bronze", "sightings", "quarantine"):
        for row in world.rows[name]:
            gap = row["detail"] if row.get("reason") in ("gap", "lost") else None
            places[row["log"], row["epoch"]].append((row["offset"], gap))
    for (log, epoch), found in places.items():
        before: tuple[int, str | None] | None = None
        for offset, gap in sorted(found, key=lambda place: (place[0], place[1] is not None)):
            hole = before is not None and before[1] is None and offset > before[0] + 1
            if gap is not None or hole:
                excused = before is None or (log in partly and gap is None)
                detail = gap or f"offsets {(before or (0,))[0] + 1} to {offset - 1} were not read"
                row = {"log": log, "epoch": epoch, "offset": offset}
                yield said("offsets", "notice" if excused else "finding", detail, row)
            before = (offset, gap)


def own_rows(world: World) -> Iterator[Row]:
    """What was read of each origin's own log, in the epoch in which the origin wrote it."""
    envelopes = {row["id"]: row for row in world.rows["bronze"]}
    for row in world.rows["bronze"]:
        yield row
    for row in world.rows["sightings"]:
        if row["id"] in envelopes:
            place = {name: row[name] for name in ("log", "epoch", "offset")}
            yield {**envelopes[row["id"]], **place}


def is_own(row: Row) -> bool:
    return bool(row["log"] == row["origin"] and row["epoch"] == row["origin_epoch"])


def numbers(world: World) -> Iterator[Said]:
    """Gaps, repeats, stamps."""
    own: dict[tuple[str, str, int], list[int]] = defaultdict(list)
    for row in filter(is_own, own_rows(world)):
        own[row["mesh"], row["origin"], row["origin_epoch"]].append(row["seq"])
    begun: dict[tuple[str, int], int] = {}
    for row in [*own_rows(world), *world.rows["quarantine"]]:
        if row.get("reason") not in ("gap", "lost"):
            key = (row["log"], row["epoch"])
            begun[key] = min(row["offset"], begun.get(key, row["offset"]))
    origins: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in world.rows["bronze"]:
        origins[row["mesh"], row["origin"]].append(row)
    for rows in origins.values():
        rows.sort(key=lambda row: (row["origin_epoch"], row["seq"], row["lamport"], row["id"]))
        yield from repeats(rows)
        yield from stamps(rows)
        yield from gaps(rows, own, begun)


def number(row: Row | None) -> tuple[int, int] | None:
    return None if row is None else (row["origin_epoch"], row["seq"])


def near(rows: list[Row], at: int) -> Row | None:
    return rows[at] if 0 <= at < len(rows) else None


def repeats(rows: list[Row]) -> Iterator[Said]:
    for at, row in enumerate(rows):
        before, after = near(rows, at - 1), near(rows, at + 1)
        other = before if number(before) == number(row) else after
        if other is not None and number(other) == number(row):
            detail = (
                f"number {row['seq']} of epoch {row['origin_epoch']} is also that of "
                f"{other['id']}: two homes claim to be {row['origin']}"
            )
            yield said("repeats", "finding", detail, row)


def stamps(rows: list[Row]) -> Iterator[Said]:
    for at, row in enumerate(rows):
        before, after = near(rows, at - 1), near(rows, at + 1)
        claimed = [number(one) for one in (near(rows, at - 2), before, row, after) if one]
        alone = not any(one == other for one, other in pairwise(claimed))
        stamp = row["lamport"]
        wrong = []
        if (
            before is not None
            and alone
            and before["origin_epoch"] == row["origin_epoch"]
            and stamp <= before["lamport"]
        ):
            wrong.append(
                f"number {row['seq']} has stamp {stamp}, not after stamp {before['lamport']} of "
                f"number {before['seq']}"
            )
        if row.get("base_lamport") is not None and row["base_lamport"] >= stamp:
            wrong.append(f"stamp {stamp} replaces {row['base_lamport']}, which is not older")
        known = 0 if before is None else before["lamport"]
        if stamp - known > LEAP:
            wrong.append(f"stamp {stamp} is over 2^48 ahead of {known}")
        if wrong:
            yield said("stamps", "finding", "; ".join(wrong), row)


def gaps(
    rows: list[Row], own: dict[tuple[str, str, int], list[int]], begun: dict[tuple[str, int], int]
) -> Iterator[Said]:
    unsure: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for at, row in enumerate(rows):
        before = near(rows, at - 1)
        begin = 1 if before is None else before["seq"] + 1
        if row["seq"] <= begin:
            continue
        epoch = row["origin_epoch"]
        read = own.get((row["mesh"], row["origin"], epoch), [])
        if before is not None and before["origin_epoch"] == epoch:
            from_before = bool(read) and min(read) <= before["seq"]
        else:
            from_before = before is None and begun.get((row["origin"], epoch)) == 1
        if read and max(read) >= row["seq"] and from_before:
            detail = (
                f"numbers {begin} to {row['seq'] - 1} of epoch {epoch} are missing, and the "
                "origin's own log was read past them"
            )
            yield said("gaps", "finding", detail, row, "mesh", "origin", "id")
        else:
            unsure[epoch].append((begin, row["seq"] - 1))
    for epoch, holes in unsure.items():
        missing = sum(end - begin + 1 for begin, end in holes)
        detail = (
            f"{missing} numbers of epoch {epoch} between {min(begin for begin, _ in holes)} and "
            f"{max(end for _, end in holes)} are missing (holes: {len(holes)}); the origin's own "
            "log was not read there"
        )
        yield said("gaps", "notice", detail, rows[0], "mesh", "origin")


def own_order(world: World) -> Iterator[Said]:
    logs: dict[tuple[str, int, str], list[Row]] = defaultdict(list)
    for row in filter(is_own, own_rows(world)):
        logs[row["log"], row["epoch"], row["mesh"]].append(row)
    for rows in logs.values():
        for before, row in pairwise(sorted(rows, key=lambda row: (row["offset"], row["seq"]))):
            if row["seq"] < before["seq"]:
                detail = (
                    f"number {row['seq']} lies at offset {row['offset']} of the origin's own log, "
                    f"after number {before['seq']} at offset {before['offset']}"
                )
                yield said("stamps", "finding", detail, row, *PLACE_ID, "mesh", "origin")


def chains(world: World) -> Iterator[Said]:
    """Events of audit streams, chain by chain, each beside the one before it."""
    last: tuple[Any, AuditRow] | None = None
    events = [
        (row, AuditAppend.event(msgspec.msgpack.decode(e.body, type=AuditAppend), e))
        for row in world.rows["bronze"]
        if row["op"] == "audit.append" and (e := decode_trusted(row["raw"]))
    ]
    for row, event in sorted(events, key=lambda pair: (*pair[1].chain, pair[1].seq)):
        known = None if last is None or last[1].chain != event.chain else last[1]
        before = 0 if known is None else known.seq
        last = row, event
        if not is_whole(event):
            detail = f"event {event.seq} does not hash to what it bears, {event.hash.hex()}"
            yield said("audit_chains", "finding", detail, row)
        elif known is not None and event.seq == before:
            detail = f"two events have the number {event.seq}; one of them has the hash "
            yield said("audit_chains", "finding", detail + event.hash.hex(), row)
        elif known is not None and event.seq == before + 1 and event.previous != known.hash:
            detail = f"event {event.seq} does not bind to event {before}"
            yield said("audit_chains", "finding", detail, row)
        if event.seq > before + 1:
            detail = f"the events {before + 1} to {event.seq - 1} are missing before event "
            yield said("audit_chains", "notice", f"{detail}{event.seq}", row)


def fences(world: World) -> Iterator[Said]:
    fenced = [
        (row, decode_trusted(row["raw"]).fence)
        for row in world.rows["bronze"]
        if row["write_class"] == "strong" and row["state"] == "committed"
    ]
    decided = Counter((row["mesh"], fence) for row, fence in fenced if fence is not None)
    for row, fence in fenced:
        if fence is None:
            continue
        lease = {
            other.coordinator
            for (mesh, other) in decided
            if mesh == row["mesh"] and other is not None and other.lease_epoch == fence.lease_epoch
        }
        under = (
            f"sequence {fence.sequence} of {fence.coordinator} in lease epoch {fence.lease_epoch}"
        )
        if (times := decided[row["mesh"], fence]) > 1:
            detail = f"{times} writes were committed under {under}"
            yield said("fences", "finding", detail, row)
        elif len(lease) > 1:
            both = f"{min(lease)} and {max(lease)}"
            detail = f"{under}, which has another coordinator too: {both}"
            yield said("fences", "finding", detail, row)


def frontiers(world: World, consumer: str) -> Iterator[Said]:
    read = world.reached()
    for log in world.logs:
        place = {"log": log.log, "epoch": log.epoch}
        known = read.get((log.log, log.epoch))
        for reader, frontier in log.readers.items():
            if log.first > frontier + 1:
                detail = (
                    f"the log begins at {log.first}, but its reader {reader} has confirmed only "
                    f"up to {frontier}"
                )
                yield said("frontiers", "finding", detail, {**place, "offset": log.first})
            if frontier > log.head:
                detail = (
                    f"its reader {reader} has confirmed up to {frontier}, but the log ends at "
                    f"{log.head}: it went back in time"
                )
                yield said("frontiers", "finding", detail, {**place, "offset": frontier})
            if reader.endswith(consumer) and known is not None and frontier > known:
                detail = (
                    f"the lake has confirmed up to {frontier} and holds the log only up to {known}"
                )
                yield said("frontiers", "finding", detail, {**place, "offset": frontier})
        if log.first > (known or 0) + 1:
            detail = f"the log begins at {log.first}, and nothing of this epoch was read before"
            if known is not None:
                detail = f"offsets {known + 1} to {log.first - 1} are gone unread"
            severity = "notice" if known is None else "finding"
            yield said("frontiers", severity, detail, {**place, "offset": log.first})


def claims(world: World) -> Iterator[Said]:
    events = world.rows["task_events"]
    claimed = [row for row in events if row["event"] == "claimed"]
    ended = [row for row in events if row["event"] in ("completed", "cancelled")]
    hands = Counter((row["mesh"], row["task"], row["generation"]) for row in claimed)
    ends = Counter((row["mesh"], row["task"]) for row in ended)

    def of_event(severity: str, detail: str, row: Row) -> Said:
        about = {"entity": row["task"], "origin": row["peer"]}
        return said("claims", severity, detail, row, "mesh", "id", **about)

    for row in claimed:
        if (times := hands[row["mesh"], row["task"], row["generation"]]) > 1:
            detail = f"generation {row['generation']} was given to {times} claims"
            yield of_event("finding", detail, row)
    for row in ended:
        if (times := ends[row["mesh"], row["task"]]) > 1:
            yield of_event("finding", f"the task ended {times} times", row)
    for task in world.rows["tasks"]:
        if task["status"] != "open":
            held = task["status"] == "claimed"
            event = "claimed" if held else task["status"]
            id = task.get("holder_id") if held else task.get("ended_id")
            key = (task["mesh"], task["task"], event, id)
            if key not in {(e["mesh"], e["task"], e["event"], e["id"]) for e in events}:
                detail = f"the task is {event} by {id or '?'}, and its events do not say so"
                about = {"entity": task["task"], "origin": task.get("holder_peer"), "id": id}
                yield said("claims", "finding", detail, task, "mesh", **about)
    for row in superseded(events, claimed):
        detail = (
            f"generation {row['generation']} was claimed by {row.get('against_peer')} too, whose "
            "stamp is lower"
        )
        yield of_event("notice", detail, row)


def superseded(events: list[Row], claimed: list[Row]) -> Iterator[Row]:
    """Claims that lost against another of the same generation."""
    for row in events:
        if row["event"] == "superseded" and row["kind"] == "claim":
            for winner in claimed:
                same = all(row[name] == winner[name] for name in ("mesh", "task", "generation"))
                if same and winner["id"] == row.get("against_id"):
                    yield row


def refusals(world: World) -> Iterator[Said]:
    for row in world.rows["quarantine"]:
        detail = f"{row['reason']}: {row['detail']}"
        if row["reason"] in FORGED:
            yield said("signatures", "finding", detail, row)
        elif row["reason"] not in ("id_conflict", "gap", "lost"):
            severity = "notice" if row["reason"] == "unknown_op" else "finding"
            yield said("refused", severity, detail, row)


def overrides(world: World) -> Iterator[Row]:
    """Every version that replaced one which its writer had not seen."""
    keys: dict[tuple[str, ...], list[Row]] = defaultdict(list)
    for row in world.rows["bronze"]:
        if row["family"] in ("state", "memory", "file"):
            keys[row["mesh"], row["family"], row["owner"], row["entity"]].append(row)
    for versions in keys.values():
        versions.sort(key=lambda row: (row["lamport"], row["origin"], row["id"]))
        for before, row in pairwise(versions):
            knew = (row.get("base_lamport"), row.get("base_peer"))
            if row["origin"] != before["origin"] and knew != (before["lamport"], before["origin"]):
                yield row


def hot_spots(world: World) -> Iterator[Said]:
    spots: dict[tuple[str, ...], list[Row]] = defaultdict(list)
    for row in overrides(world):
        spots[row["mesh"], row["family"], row["owner"], row["entity"]].append(row)
    for (mesh, family, owner, entity), rows in spots.items():
        if len(rows) >= 10:
            peers = len({row["origin"] for row in rows})
            detail = (
                f"{family}: {len(rows)} writes of {peers} peers replaced one that they had not seen"
            )
            about = {"mesh": mesh, "origin": owner or None, "entity": entity}
            yield said("hot_spots", "notice", detail, about)


# --- measures ------------------------------------------------------------------------------------


def conflicts(world: World) -> Counter[tuple[Any, ...]]:
    """By key and day: how many overrides."""
    return Counter(
        (row["mesh"], row["family"], row["owner"], row["entity"], row["created_at"].date())
        for row in overrides(world)
    )


def growth(world: World) -> dict[tuple[str, str], tuple[int, int]]:
    """By mesh and family: rows and bytes."""
    found: dict[tuple[str, str], tuple[int, int]] = {}
    for row in world.rows["bronze"]:
        rows, size = found.get((row["mesh"], row["family"]), (0, 0))
        found[row["mesh"], row["family"]] = (rows + 1, size + len(row["raw"]))
    return found


def lag(world: World) -> dict[tuple[Any, ...], tuple[Any, ...]]:
    """By log and hour: entries, median, 95th percentile, the longest delay and the last entry."""
    return _delays(world, lambda row: (row["log"],))


def staleness(world: World) -> dict[tuple[Any, ...], tuple[Any, ...]]:
    """The same by log and origin, without the origin's own log."""
    return _delays(world, lambda row: (row["log"], row["origin"]), others=True)


def _delays(world: World, of: Any, *, others: bool = False) -> dict[Any, tuple[Any, ...]]:
    envelopes = {row["id"]: row for row in world.rows["bronze"]}
    groups: dict[Any, list[Row]] = defaultdict(list)
    for row in [*world.rows["bronze"], *world.rows["sightings"]]:
        if row["id"] in envelopes:
            seen = {**envelopes[row["id"]], **row}
            if not (others and seen["log"] == seen["origin"]):
                came = seen["recorded_at"]
                hour = came - timedelta(minutes=came.minute, seconds=came.second)
                groups[*of(seen), hour].append(seen)
    found = {}
    for key, rows in groups.items():
        times = sorted((row["recorded_at"] - row["created_at"]).total_seconds() for row in rows)
        ranks = [times[-(-len(times) * percent // 100) - 1] for percent in (50, 95)]
        last = max(row["recorded_at"] for row in rows)
        found[key] = (len(rows), *ranks, times[-1], last)
    return found
