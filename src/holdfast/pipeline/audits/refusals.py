"""The rows of quarantine: what the lake could not keep or may not fold.

These are the dead letters that the lake can know of. What a node's outbox or a broker's queue has
given up on stands in their own tables and in no log (see `holdfast outbox list --failed` and
`holdfast queue letters`). Wrong signatures and origins are an audit of their own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Final

import numpy as np

from holdfast.pipeline.audits.arrays import Numbers, coded, millis, rows_at
from holdfast.pipeline.audits.scan import Share
from holdfast.pipeline.audits.shape import FINDING, NOTICE, Audit, Found, FoundRow, found
from holdfast.pipeline.ingest.dedupe import CONFLICT
from holdfast.pipeline.lake.schema import GAP, LOST, UNKNOWN_OP
from holdfast.rules.errors import ForgedOrigin, KeyExpired, NotTrusted, ZoneNotTrusted

FORGED: Final = (
    "bad_signature",
    ForgedOrigin.code,
    NotTrusted.code,
    ZoneNotTrusted.code,
    KeyExpired.code,
)
"""Reasons that mean that an envelope is not from the origin that it names."""


def judge_aside(share: Share, names: Iterable[str]) -> list[Found]:
    """What a share of quarantine holds, for the audits with these names."""
    (reasons,), texts = coded(share.aside["reason"])

    def of(*wanted: str) -> Numbers:
        chosen = [at for at, text in enumerate(texts) if text in wanted]
        return np.flatnonzero(np.isin(reasons, chosen))

    elsewhere = (*FORGED, CONFLICT, GAP, LOST, UNKNOWN_OP)
    rest = of(*(text for text in texts if text not in elsewhere))
    kinds = [
        (SIGNATURES.name, FINDING, of(*FORGED)),
        (REFUSED.name, FINDING, rest),
        # An op of a newer version is kept, and is folded once this Holdfast is as new.
        (REFUSED.name, NOTICE, of(UNKNOWN_OP)),
    ]
    times = millis(share.aside["recorded_at"])
    return [
        part
        for name, severity, at in kinds
        if name in names
        for part in found(
            name, severity, np.ones(len(at), np.int64), times[at], partial(_rows, share, at)
        )
    ]


def _rows(share: Share, at: Numbers, places: Sequence[int]) -> Iterable[FoundRow]:
    for row in rows_at(share.aside, at[places]):
        detail = "?" if row["detail"] is None else row["detail"]
        known = {name: row[name] for name in ("log", "epoch", "offset", "id")}
        yield FoundRow(
            weight=1, detail=f"{row['reason']}: {detail}", at=row["recorded_at"], **known
        )


SIGNATURES: Final = Audit(
    "signatures", "envelopes that are not from whom they claim", "none: the newest come first"
)
REFUSED: Final = Audit(
    "refused", "everything else that lies in quarantine", "none: the newest come first"
)
