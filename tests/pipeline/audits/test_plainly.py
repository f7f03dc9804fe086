"""Audits of random lakes in which much is wrong, against the same rules said in plain Python.

Each lake is audited by one task and by many, in the driver: how it is divided must not matter.
"""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest

from holdfast.pipeline.audits import AUDITS, MEASURES
from holdfast.pipeline.audits.gold import findings_table, gold_tables, rows_of, run_audits
from holdfast.pipeline.audits.live_facts import LiveFacts, LogFacts
from holdfast.pipeline.lake.lake import Lake
from holdfast.rules.audit_chain import AuditChain, AuditRow, next_event
from holdfast.rules.envelope import Fence
from support import plain_audits as plain
from support.audit_world import START, World
from support.envelopes import make_id
from support.seeds import seeds

SHARES = "holdfast.pipeline.audits.job.AUDIT_SHARE_ROWS"
MESHES, PEERS = ("team", "other"), ("ana", "bob", "cyd")
REASONS = (
    "gap",
    "lost",
    "unknown_op",
    "bad_signature",
    "bad_envelope",
    "id_conflict",
    "forged_origin",
)


class Chaos:
    """A world in which everything that can go wrong does, now and then."""

    def __init__(self, seed: int) -> None:
        self.chance = Random(seed)
        self.world = World()
        self.events: list[AuditRow] = []
        self.next: dict[tuple[str, int], int] = {}
        self.count: dict[tuple[str, str, int], tuple[int, int]] = {}
        self.epochs = dict.fromkeys(PEERS, 1)
        self.ids: list[str] = []
        for _ in range(self.chance.randint(20, 300)):
            self.chance.choices(
                (
                    self.write,
                    self.hear,
                    self.refuse,
                    self.restore,
                    self.turn,
                    self.strong,
                    self.event,
                ),
                (50, 30, 4, 1, 6, 5, 3),
            )[0]()
        for log in PEERS:
            self.tell(log)

    def rarely(self) -> bool:
        return self.chance.random() < 0.04

    def place(self, log: str) -> dict[str, Any]:
        epoch = self.epochs.get(log, 1)
        offset = self.next.get((log, epoch), 1)
        if self.rarely():
            offset = max(1, offset + self.chance.choice((-3, -1, 1, 4)))
        self.next[log, epoch] = offset + 1
        return {"log": log, "offset": offset, "epoch": epoch}

    def write(self, **more: Any) -> None:
        mesh, origin = self.chance.choice(MESHES), self.chance.choice(PEERS)
        epoch = self.epochs[origin]
        seq, stamp = self.count.get((mesh, origin, epoch), (0, self.chance.randrange(9)))
        seq, stamp = seq + 1, stamp + self.chance.choice((1, 1, 2, 5))
        if self.rarely():
            seq = max(1, seq + self.chance.choice((-2, -1, 1, 3)))
        if self.rarely():
            stamp = max(1, stamp + self.chance.choice((-4, -1, 2**49)))
        self.count[mesh, origin, epoch] = (seq, stamp)
        base = self.chance.choice((None, None, self.chance.randrange(stamp + 2)))
        family = self.chance.choice(("state", "state", "state", "memory", "fact"))
        given = {
            **{"entity": f"key {self.chance.randrange(2)}", "origin_epoch": epoch},
            **{"family": family, "owner": origin if family == "memory" else ""},
            **{
                "base_lamport": base,
                "base_peer": None if base is None else self.chance.choice(PEERS),
            },
            **{"created_at": START + timedelta(minutes=self.chance.randrange(300))},
            **{"recorded_at": START + timedelta(seconds=self.chance.randrange(40_000))},
            "raw": bytes(self.chance.randrange(5)),
            **more,
        }
        log = origin if self.chance.random() < 0.7 else self.chance.choice((*PEERS, "hub"))
        place = {**self.place(log), "mesh": mesh, "origin": origin, "seq": seq, "lamport": stamp}
        self.ids.append(self.world.entry(**place, **given))
        if self.rarely():
            twin = self.world.rows["bronze"][-1]
            self.world.rows["bronze"].append({**twin, **self.place(log)})

    def hear(self) -> None:
        if self.ids:
            id = self.world.id() if self.rarely() else self.chance.choice(self.ids)
            at = START + timedelta(seconds=self.chance.randrange(40_000))
            self.world.again(
                **self.place(self.chance.choice((*PEERS, "hub"))), id=id, recorded_at=at
            )

    def refuse(self) -> None:
        place, reason = self.place(self.chance.choice(PEERS)), self.chance.choice(REASONS)
        once = Counter(row["id"] for row in self.world.rows["bronze"])
        known = [id for id in self.ids if once[id] == 1]
        id = self.chance.choice(known) if known and reason == "id_conflict" else None
        self.world.refuse(
            place["log"], place["offset"], reason, "" if reason in ("gap", "lost") else id
        )
        self.world.rows["quarantine"][-1]["epoch"] = place["epoch"]
        if reason in ("gap", "lost"):
            self.next[place["log"], place["epoch"]] += self.chance.randrange(4)

    def restore(self) -> None:
        peer = self.chance.choice(PEERS)
        before, self.epochs[peer] = self.epochs[peer], self.epochs[peer] + 1
        for mesh in MESHES:
            seq, stamp = self.count.get((mesh, peer, before), (0, 0))
            kept = max(0, seq - self.chance.randrange(4))
            self.count[mesh, peer, before + 1] = (kept, stamp)

    def turn(self) -> None:
        task, peer = f"task {self.chance.randrange(4)}", self.chance.choice(PEERS)
        events = [row["id"] for row in self.world.rows["task_events"]]
        event = self.chance.choice(("claimed", "claimed", "superseded", "completed", "cancelled"))
        against = self.chance.choice(events) if events and event == "superseded" else None
        id = self.world.turn(
            *(task, len(events), peer, self.chance.choice(("claim", "complete")), event),
            generation=self.chance.randrange(2),
            against_id=against,
            against_peer=against and peer,
        )
        if task not in {row["task"] for row in self.world.rows["tasks"]}:
            status = self.chance.choice(("open", "claimed", "completed", "cancelled"))
            self.world.task(task, status, holder_id=id, ended_id=id, holder_peer=peer)

    def strong(self) -> None:
        leases = Fence(
            self.chance.randrange(2), self.chance.choice(PEERS), self.chance.randrange(3)
        )
        fence = self.chance.choice((None, leases))
        state = self.chance.choice(("committed", "committed", "rejected"))
        offset = self.next.get(("quorum", 1), 1)
        self.next["quorum", 1] = offset + 1
        self.world.strong(offset, "quorum", fence, state=state)

    def event(self) -> None:
        """An event of an audit stream: now and then one is left out, doubled, or torn off."""
        chain = AuditChain("audited", "s", "audited", 1)
        last = self.events[-1] if self.events else None
        if last is not None and self.rarely():
            last = msgspec.structs.replace(
                last, seq=self.chance.choice((last.seq - 1, last.seq + 2))
            )
        number = len(self.events)
        made = next_event(chain, last, id=make_id(5000 + number), at=0, payload=b"1")
        self.events.append(made)
        self.world.event(number + 1, "audited", made)

    def tell(self, log: str) -> None:
        first, head = self.chance.randrange(1, 9), self.chance.randrange(5, 60)
        readers = {"lake": self.chance.randrange(60), "zed": self.chance.randrange(60)}
        whole, epoch = self.chance.random() < 0.7, self.chance.choice((1, self.epochs[log]))
        told = LogFacts(log=log, epoch=epoch, first=first, head=head, whole=whole, readers=readers)
        self.world.logs.append(told)


def said_of(lake: Lake) -> Counter[plain.Said]:
    return Counter(
        (row["audit"], row["severity"], *(row[name] for name in plain.COLUMNS), row["detail"])
        for row in rows_of(findings_table(lake)).to_pylist()
    )


def measured(lake: Lake, name: str) -> list[dict[str, Any]]:
    return list(rows_of(gold_tables(lake)[name]).to_pylist())


@pytest.mark.parametrize("seed", seeds(6))
def test_P5_audits_find_what_plain_rules_find_however_the_lake_is_divided(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    world = Chaos(seed).world
    lake = world.lake(tmp_path / "lake", files=1 + seed % 4)
    consumer = lake.consumer
    logs = [
        LogFacts(
            log=log.log,
            epoch=log.epoch,
            first=log.first,
            head=log.head,
            whole=log.whole,
            readers={consumer: log.readers["lake"], "zed": log.readers["zed"]},
        )
        for log in world.logs
    ]
    world.logs = logs
    expected = Counter(plain.everything(world, consumer))
    for rows in (1_000_000, 9):
        monkeypatch.setattr(SHARES, rows)
        report = run_audits(None, lake, facts=LiveFacts(tuple(logs)))
        assert said_of(lake) == expected
        assert report.findings + report.notices == expected.total()
    assert {row["audit"] for row in rows_of(findings_table(lake)).to_pylist()} <= set(AUDITS)
    _compare_measures(world, lake)


def _compare_measures(world: World, lake: Lake) -> None:
    keys = ("mesh", "family", "owner", "entity", "day")
    conflicts = measured(lake, "conflicts")
    assert {tuple(row[key] for key in keys): row["overrides"] for row in conflicts} == dict(
        plain.conflicts(world)
    )
    grown: dict[tuple[str, str], tuple[int, int]] = {}
    for row in measured(lake, "growth"):
        rows, size = grown.get((row["mesh"], row["family"]), (0, 0))
        grown[row["mesh"], row["family"]] = (rows + row["rows"], size + row["bytes"])
    assert grown == plain.growth(world)
    figures = ("entries", "p50_s", "p95_s", "max_s", "last_at")
    for name, of in (("lag", ("log", "hour")), ("staleness", ("log", "origin", "hour"))):
        found = {
            tuple(row[key] for key in of): tuple(row[figure] for figure in figures)
            for row in measured(lake, name)
        }
        assert found == getattr(plain, name)(world)
    assert set(MEASURES) == {"conflicts", "growth", "lag", "staleness"}


def test_P5_random_lakes_have_something_for_every_audit() -> None:
    found = {said[0] for seed in range(6) for said in plain.everything(Chaos(seed).world, "lake")}
    assert found == set(AUDITS)
