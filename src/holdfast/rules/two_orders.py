"""What a voter does when others show it another order of its mesh.

That happens after two survivors have both recovered, or after one was recovered that was not the
last. Nobody can tell from within which order counts, and both go on under fences that look alike.
But a page of commits is a claim and no proof: one that may vote could make one up, and must not be
able to stop all others by it. So claims are counted, one for each that may vote:

    as many as a majority of this group's own voters    the group has no more on its side than the
                                                        other one: it stops until somebody decides
    fewer                                               it goes on, and says so

A group of one voter stops at one claim. Of two groups of the same size both stop; of two groups
where one is large, the small one does.
"""

from __future__ import annotations


def is_contested(claims: int, voters: int) -> bool:
    """Whether a group with so many voters stops, if so many others have shown another order."""
    return claims > voters // 2
