"""The envelopes among the entries of a log, each with its fence, as the fold takes them."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from holdfast.node.core.commit import CommittedEntry
from holdfast.rules.errors import BadQuorumMessage
from holdfast.rules.quorum.coordinated import decode_coordinated
from holdfast.rules.quorum.fence import FenceToken
from holdfast.rules.quorum.raft.messages import RaftEntry

log = logging.getLogger("holdfast")


def readable_entries(
    incarnation: int, first: int, entries: Sequence[RaftEntry]
) -> list[CommittedEntry]:
    """Of entries from index `first` on. What no coordinator can have written is passed over by
    every node alike.
    """
    readable = []
    for index, entry in enumerate(entries, first):
        if entry.kind != "data":
            continue
        try:
            read = decode_coordinated(entry.payload)
        except BadQuorumMessage as error:
            log.error("entry %d of the quorum is passed over: %s", index, error.message)
            continue
        fence = FenceToken(incarnation, entry.term, read.coordinator, index)
        readable.append(CommittedEntry(read.envelope, fence, read.committed_at, index))
    return readable
