"""What the lake could not keep or would not fold, row by row.

Quarantine is the lake's letter box for what cannot be delivered: these are the dead letters that
the lake can know of. What a node's outbox or a broker's queue has given up on stands in their own
tables and in no log, so it is told there (`holdfast outbox list --failed`, `holdfast queue
letters`). Whose signature or origin was wrong is an audit of its own.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from holdfast.pipeline.audits.shape import (
    FINDING,
    NOTICE,
    Audit,
    AuditTables,
    as_findings,
    sentence,
)
from holdfast.pipeline.ingest.batch import GAP
from holdfast.pipeline.ingest.dedupe import CONFLICT, UNKNOWN_OP
from holdfast.rules.errors import ForgedOrigin, KeyExpired, NotTrusted, ZoneNotTrusted

FORGED: Final = (
    "bad_signature",
    ForgedOrigin.code,
    NotTrusted.code,
    ZoneNotTrusted.code,
    KeyExpired.code,
)
"""Reasons that say: this is not from whom it claims to be."""


def _signatures(tables: AuditTables) -> DataFrame:
    rows = tables.quarantine.filter(F.col("reason").isin(*FORGED))
    return as_findings(rows, SIGNATURES.name, FINDING, _reason(), at="recorded_at")


def _refused(tables: AuditTables) -> DataFrame:
    told_elsewhere = F.col("reason").isin(*FORGED, CONFLICT, GAP)
    rows = tables.quarantine.filter(~told_elsewhere)
    # An op of a newer version is kept, and will be folded when this version is newer too.
    severity = F.when(F.col("reason") == UNKNOWN_OP, NOTICE).otherwise(FINDING)
    return as_findings(rows, REFUSED.name, severity, _reason(), at="recorded_at")


def _reason() -> Column:
    return sentence("{}: {}", "reason", "detail")


SIGNATURES: Final = Audit("signatures", "envelopes that are not from whom they claim", _signatures)
REFUSED: Final = Audit("refused", "everything else that lies in quarantine", _refused)
