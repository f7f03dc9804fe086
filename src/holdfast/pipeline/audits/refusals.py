"""The rows of quarantine: what the lake could not keep or may not fold.

These are the dead letters that the lake can know of. What a node's outbox or a broker's queue has
given up on stands in their own tables and in no log (see `holdfast outbox list --failed` and
`holdfast queue letters`). Wrong signatures and origins are an audit of their own.
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


def _signatures(tables: AuditTables) -> DataFrame:
    rows = tables.quarantine.filter(F.col("reason").isin(*FORGED))
    return as_findings(rows, SIGNATURES.name, FINDING, _reason(), at="recorded_at")


def _refused(tables: AuditTables) -> DataFrame:
    in_other_audits = F.col("reason").isin(*FORGED, CONFLICT, GAP, LOST)
    rows = tables.quarantine.filter(~in_other_audits)
    # An op of a newer version is kept, and is folded once this Holdfast is as new.
    severity = F.when(F.col("reason") == UNKNOWN_OP, NOTICE).otherwise(FINDING)
    return as_findings(rows, REFUSED.name, severity, _reason(), at="recorded_at")


def _reason() -> Column:
    return sentence("{}: {}", "reason", "detail")


SIGNATURES: Final = Audit("signatures", "envelopes that are not from whom they claim", _signatures)
REFUSED: Final = Audit("refused", "everything else that lies in quarantine", _refused)
