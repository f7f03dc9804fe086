"""Which releases of etcd can be trusted with an order.

Before 3.5.28 and 3.6.9 a linearizable read may be stale after a pause of the process (etcd #20418),
and in older ones more goes wrong: 3.5.0 to 3.5.2 lose consistency when they are killed under load
(#13766).
"""

from __future__ import annotations

import re
from typing import Final

from holdfast.rules.errors import BadAnswer, EtcdTooOld

_LEAST: Final = {5: 28, 6: 9}
"""By minor version of 3: the first patch that can be trusted. Every later minor can be."""
_VERSION: Final = re.compile(r"([0-9]{1,4})\.([0-9]{1,4})\.([0-9]{1,4})(-[0-9A-Za-z.+-]{1,64})?")


def check_version(text: str, member: str) -> None:
    """Raises EtcdTooOld unless a member with this version can be trusted."""
    found = _VERSION.fullmatch(text)
    if found is None:
        raise BadAnswer(f"etcd at {member} does not say which version it is")
    major, minor, patch = (int(found[part]) for part in (1, 2, 3))
    if major != 3:
        raise EtcdTooOld(f"etcd at {member} is {text}; only 3.5, 3.6 and later ones of 3 are known")
    least = _LEAST.get(minor, 0)
    # A candidate comes before its release.
    if minor < min(_LEAST) or patch < least or (patch == least and least and found[4]):
        raise EtcdTooOld(
            f"etcd at {member} is {text}: linearizable reads may be stale there, and writes lost"
        )
