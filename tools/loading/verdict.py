"""Whether a load lost anything, or did anything twice: the journals of all nodes, side by side.

What a node wrote stands in its own log. Every other node must have each change in its log, once;
each message must be in the inbox of each receiver, once; each message of the queue was finished by
a taker that got the answer, or that died before the answer. Nothing else may stand anywhere.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from tools.loading.journal import lines_of
from tools.loading.user import QUEUE, TOPIC

SHOWN = 3


class Written(NamedTuple):
    """An envelope, as its writer's log has it."""

    origin: str
    op: str
    entity: str

    def is_for(self, peer: str, key: str) -> bool:
        if self.op != "message.send":
            return True
        return self.entity in (f"topic/{TOPIC}", f"dm/{key}")


class Verdict(NamedTuple):
    problems: list[str]
    written: int
    messages: int
    finished: int


def judge(folder: Path, keys: Mapping[str, str]) -> Verdict:
    """`keys` are the nodes by name, with their public keys."""
    problems: list[str] = []
    written: dict[str, Written] = {}
    for peer in keys:
        own = _own(folder, peer, problems)
        written |= own
        acked = [words[0] for words in lines_of(folder / f"{peer}.acked")]
        _compare(
            problems, f"{peer} got an acknowledgement of, and has not", set(acked) - own.keys()
        )
    messages = 0
    for peer, key in keys.items():
        due = {
            id: one for id, one in written.items() if one.origin != peer and one.is_for(peer, key)
        }
        came = {words[1] for words in lines_of(folder / f"{peer}.log") if words[2] != peer}
        _compare(problems, f"{peer} has never got", due.keys() - came)
        _compare(problems, f"{peer} has, and should not", came - due.keys())
        for_inbox = {id for id, one in due.items() if one.op == "message.send"}
        messages += len(for_inbox)
        problems += _inbox(folder, peer, for_inbox)
    problems += _queue(folder, keys, written)
    finished = sum(one.entity == f"queue/{QUEUE}" for one in written.values())
    return Verdict(problems, len(written), messages, finished)


def _own(folder: Path, peer: str, problems: list[str]) -> dict[str, Written]:
    own: dict[str, Written] = {}
    seen: set[str] = set()
    last = 0
    for offset, id, origin, op, entity in lines_of(folder / f"{peer}.log"):
        if int(offset) != last + 1:
            problems.append(f"the log of {peer} has {offset} after {last}")
        last = int(offset)
        if id in seen:
            problems.append(f"{peer} has {id} twice")
        seen.add(id)
        if origin == peer:
            own[id] = Written(origin, op, entity)
    return own


def _inbox(folder: Path, peer: str, for_inbox: set[str]) -> list[str]:
    came = Counter(words[1] for words in lines_of(folder / f"{peer}.inbox"))
    problems: list[str] = []
    _compare(problems, f"the inbox of {peer} lacks", for_inbox - came.keys())
    _compare(problems, f"the inbox of {peer} has, and should not", came.keys() - for_inbox)
    twice = {id for id, times in came.items() if times > 1}
    _compare(problems, f"the inbox of {peer} had twice", twice)
    return problems


def _queue(folder: Path, keys: Mapping[str, str], written: Mapping[str, Written]) -> list[str]:
    asked: set[str] = set()
    done: Counter[str] = Counter()
    for peer in keys:
        for id, how in lines_of(folder / f"{peer}.settled"):
            asked.add(id)
            done[id] += how == "done"
    sent = {id for id, one in written.items() if one.entity == f"queue/{QUEUE}"}
    problems: list[str] = []
    _compare(problems, "never finished", sent - asked)
    _compare(problems, "finished, and never sent:", asked - sent)
    _compare(problems, "finished twice:", {id for id, times in done.items() if times > 1})
    return problems


def _compare(problems: list[str], what: str, ids: set[str]) -> None:
    if ids:
        problems.append(f"{what} {len(ids)}: {', '.join(sorted(ids)[:SHOWN])}")
