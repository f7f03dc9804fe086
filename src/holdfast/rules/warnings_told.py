"""Warnings that a node has for its user, in words."""

from __future__ import annotations

from typing import Any, Final

from holdfast.rules.rows import WarningRow

_SENTENCES: Final = {
    "task_claim_superseded": "your claim on task {entity} lost against that of {by_peer}",
    "vector_model_deprecated": "the vectors of {entity} are being moved to another model: "
    "what is stored under it now is found only by those who still search it",
}


def warning_document(row: WarningRow) -> dict[str, Any]:
    sentence = _SENTENCES.get(row.type, "{type} on {entity} by {by_peer}")
    subject = {"mesh": row.mesh, "entity": row.entity, "by_peer": row.by_peer}
    return {
        "type": row.type,
        "message": sentence.format(type=row.type, **subject),
        **subject,
        "at_lamport": row.at_lamport,
    }
