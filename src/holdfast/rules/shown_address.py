"""An address as an error repeats it: without what may be a secret.

Who types an address may put a password before the host, or a token behind a question mark. The
error that says that this cannot be used goes to a terminal, a log or a bug report, without them.
"""

from __future__ import annotations

import re
from typing import Final

from holdfast.rules.limits import LINK_URL_BYTES_MAX

_HIDDEN: Final = "…"
_BEFORE_HOST: Final = re.compile(r"(?s)(?P<kept>^(?:[^/?#]*://)?)[^/]*@")
"""Up to the last `@` before a path: a password may hold `?` and `#`, typed as they are."""
_BEHIND: Final = re.compile(r"(?s)(?P<kept>[?#]).*")


def shown_address(text: str) -> str:
    """What may be repeated of an address, in quotes."""
    text = text[:LINK_URL_BYTES_MAX]
    without = _BEFORE_HOST.sub(rf"\g<kept>{_HIDDEN}@", text)
    return repr(_BEHIND.sub(rf"\g<kept>{_HIDDEN}", without))
