"""Which of two connections between two peers becomes their link.

Both sides may dial at once. The peer with the **lower key** decides, because it takes part in both
connections and can do one thing after the other:

- its own dial is settled from the moment that it sends its proof. Until the answer is there, a
  connection that the other side dialled waits; it is refused if the dial succeeds.
- while nothing is settled it lets in what comes, and gives up its own dial at the latest moment
  before its proof.

So no second link comes up while one is coming up, and if both dial at the same moment, the dial of
the lower key wins. The peer with the higher key takes what the lower one lets through, the newest
last.

A link that was up before a connection was begun is no reason to refuse it: a peer that has a link
does not dial. If it dials, its end of the old link is gone, so the new link replaces the old one,
and what still comes from the old one is not read. A connection that was begun before our own dial
became the link is another thing: the two have crossed.
"""

from __future__ import annotations

from enum import StrEnum


class InboundVerdict(StrEnum):
    """What happens to a connection that a peer dialled, after it has proved its key."""

    LET_IN = "let_in"
    WAIT = "wait"
    """Until our own dial has succeeded or failed."""
    REFUSE = "refuse"


def inbound_verdict(
    own: bytes, peer: bytes, *, dial_settled: bool, dialled_since: bool
) -> InboundVerdict:
    """`dial_settled`: our own dial has sent its proof and has no answer yet; `dialled_since`: there
    is a link that we dialled, and it came up after this connection was begun.
    """
    if own > peer:
        return InboundVerdict.LET_IN
    if dial_settled:
        return InboundVerdict.WAIT
    return InboundVerdict.REFUSE if dialled_since else InboundVerdict.LET_IN
