"""Why a WebSocket between a node and a broker is closed, as a number.

The broker closes with these codes in `broker/session.py`, a node in `node/sync/conversation.py`.
What a node makes of the code of its broker is decided in `node/sync/connection.py`, and what
follows from that in `rules/broker_sync.py`. A code that a node does not know is taken for a lost
connection: it tries again.
"""

from __future__ import annotations

from typing import Final

from holdfast.rules.errors import (
    FeatureParamBelowFloor,
    FeatureParamInvalid,
    FeatureUnavailable,
    HoldfastError,
)

GOING_AWAY: Final = 1001
"""The side that closes is stopping."""


BAD_FRAME: Final = 1002
"""A frame cannot be read, or does not belong there."""


TOO_LARGE: Final = 1009
"""A frame is larger than the other side takes."""


INTERNAL: Final = 1011
"""A fault of the side that closes, or its store does not answer."""


TOO_SLOW: Final = 4008
"""The other side sent no hello in time, was silent, or did not read what it was sent."""


NOT_TRUSTED: Final = 4001
"""The hello does not prove the key that it names."""


ANOTHER_CONNECTION: Final = 4013
"""The broker keeps one connection of each member, and kept another one (`connection_policy`)."""


TOO_MANY: Final = 4029
"""The other side was refused too often: it belongs to none of the meshes that it names."""


CLOSE_CODES: Final[dict[type[HoldfastError], int]] = {
    FeatureUnavailable: 4010,
    FeatureParamInvalid: 4011,
    FeatureParamBelowFloor: 4012,
}


def close_code(error: HoldfastError) -> int:
    """The code with which a side closes a connection because of this error."""
    return CLOSE_CODES.get(type(error), NOT_TRUSTED)


def close_reason(error: HoldfastError) -> str:
    """The reason that goes with the code: one word where two programs did not agree, which each of
    them explains in its log; else a sentence.
    """
    return error.code if type(error) in CLOSE_CODES else error.message
