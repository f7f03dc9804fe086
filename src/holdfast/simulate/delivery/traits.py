"""What is drawn for a world of delivery, before its story begins."""

from __future__ import annotations

import random
from typing import NamedTuple


class DeliveryTraits(NamedTuple):
    """What is drawn for a world."""

    peers: int
    meshes: tuple[str, ...]
    relay: bool
    """Every member may bring what others wrote, not only the owner."""
    broker_goes_back: bool
    nodes_go_back: bool
    removing: bool
    publishing: str
    """A mesh that is personal at first is published in the storm: `backfill`, `snapshot`, or not at
    all."""
    sleeping: bool
    """At some time everybody sleeps for longer than ids are remembered."""
    broker_far_ahead: bool
    """At some time the broker's clock shows a day that is weeks ahead."""
    poison: str
    """What the broker does at some messages: it `fails`, `hangs up`, is `silent`; or nothing."""
    broker_far_behind: bool
    """At some time the broker's clock shows a day that is weeks behind."""

    @property
    def reusing(self) -> bool:
        """People use ids of messages again soon after, their own and those of others. Only where
        nobody goes back in time: else both messages under an id may be accepted, one after the
        other, and whoever has one refuses the other.
        """
        return not (self.broker_goes_back or self.nodes_go_back or self.broker_far_ahead)


def traits_of(seed: int) -> DeliveryTraits:
    rng = random.Random(f"world {seed} delivery")
    nodes_go_back = rng.random() < 0.4
    drawn = DeliveryTraits(
        peers=rng.choice((2, 3, 3, 4)),
        meshes=rng.choice((("team",), ("team",), ("team", "lab"))),
        # What two nodes and the broker have all forgotten is brought by a third, if it may.
        relay=nodes_go_back or rng.random() < 0.5,
        broker_goes_back=rng.random() < 0.5,
        nodes_go_back=nodes_go_back,
        removing=rng.random() < 0.4,
        publishing=rng.choice(("", "backfill", "snapshot")),
        sleeping=rng.random() < 0.4,
        broker_far_ahead=rng.random() < 0.4,
        poison=rng.choice(("",) * 9 + ("fails", "hangs up", "silent")),
        broker_far_behind=rng.random() < 0.6,
    )
    if drawn.sleeping:
        # An operator sweeps after the sleep, and goes by the clock as it is.
        drawn = drawn._replace(broker_far_behind=False)
    if nodes_go_back:
        # One that was restored to a time before it published or joined would have to do it again.
        return drawn._replace(publishing="")
    # Two meshes are enough for one story.
    return drawn._replace(meshes=drawn.meshes[:1]) if drawn.publishing else drawn
