"""What became of an envelope, in the words of the wire: a status and, for a refusal, the reason."""

from __future__ import annotations

from typing import Final

from holdfast.protocol.frames import PushAnswer, WireError
from holdfast.rules import limits
from holdfast.rules.broker_rows import AcceptResult, AcceptVerdict
from holdfast.rules.errors import (
    EpochMismatch,
    HoldfastError,
    IdempotencyKeyReused,
    NotAMember,
    NotGranted,
    StoreClosed,
    UnknownDestination,
)
from holdfast.rules.fingerprint import PREFIX_BYTES

Outcome = AcceptResult | HoldfastError
"""What became of one envelope: the store's answer, or why there is none."""

_OURS: Final = 500
"""Statuses from here on say that the broker failed, not the request."""
_ASK_OWNER: Final = "ask the owner of the mesh for the grant"


def error_of(answer: AcceptResult) -> HoldfastError | None:
    """The error that a verdict stands for; None if the envelope is accepted, now or before."""
    match answer.verdict:
        case AcceptVerdict.CREATED | AcceptVerdict.DUPLICATE:
            return None
        case AcceptVerdict.REUSED:
            return IdempotencyKeyReused(
                "this id was accepted before with another request, whose fingerprint begins with "
                f"{answer.fingerprint[:PREFIX_BYTES].hex()}"
            )
        case AcceptVerdict.UNKNOWN_MESH | AcceptVerdict.NOT_A_MEMBER:
            # One answer: nobody learns here which meshes there are.
            return NotAMember("this key is no member of the mesh")
        case AcceptVerdict.NOT_GRANTED:
            return NotGranted("this member may not hand that in", hint=_ASK_OWNER)
        case AcceptVerdict.EPOCH_MISMATCH:
            return EpochMismatch(f"the mesh counts in epoch {answer.epoch}")
        case AcceptVerdict.UNKNOWN_DESTINATION:
            return UnknownDestination("the mesh has no such destination")


def for_members(error: HoldfastError) -> HoldfastError:
    """The error as a member may read it. What the store says of its own trouble may name files of
    the broker's machine, or hold what other members handed in: that is for the broker's log.
    """
    if error.http_status < _OURS or isinstance(error, StoreClosed):
        return error
    return type(error)("the broker's store did not do it", hint="retry with the same ids, later")


def problem_of(error: HoldfastError) -> WireError:
    error = for_members(error)
    most = limits.REASON_CHARS_MAX  # it may repeat what the other side sent
    return WireError(error.code, error.message[:most], error.hint[:most])


def answer_of(number: int, outcome: Outcome) -> PushAnswer:
    """The answer to one item of a push."""
    if isinstance(outcome, HoldfastError):
        return PushAnswer(number, outcome.http_status, problem=problem_of(outcome))
    if outcome.verdict is AcceptVerdict.CREATED:  # nearly all of them
        seen = (outcome.broker_id, True, outcome.first_seen_at)
        return PushAnswer(number, 201, outcome.message_epoch, outcome.seq, *seen)
    error = error_of(outcome)
    if error is not None:
        return PushAnswer(
            number,
            error.http_status,
            message_epoch=outcome.message_epoch,
            seq=outcome.seq,
            problem=problem_of(error),
        )
    return PushAnswer(
        number,
        200,
        outcome.message_epoch,
        outcome.seq,
        outcome.broker_id,
        outcome.history_available,
        outcome.first_seen_at,
    )
