"""Places for open pages: no token takes those of all others, nor all tokens those of the node's own
user.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from holdfast.rules import limits
from holdfast.rules.errors import TooMany
from holdfast.service.caller import Caller


class OpenPages:
    """How many pages each token keeps open."""

    def __init__(self) -> None:
        self._open: Counter[str] = Counter()

    def take(self, caller: Caller) -> Callable[[], None]:
        """A place for one page; what comes back frees it, and is called once. Raises TooMany if
        this token, or all together, have as many as they may. The own user's are not counted here.
        """
        if caller.is_local:
            return lambda: None
        name = f"{caller.kind}:{caller.name}"
        if self._open[name] >= limits.CONSOLE_STREAMS_OF_TOKEN_MAX:
            raise TooMany(
                f"{caller.kind} {caller.name!r} has "
                f"{limits.CONSOLE_STREAMS_OF_TOKEN_MAX} pages open that are kept up to date",
                hint="close some of them",
            )
        if self._open.total() >= limits.CONSOLE_STREAMS_OF_TOKENS_MAX:
            raise TooMany(
                f"readers have {limits.CONSOLE_STREAMS_OF_TOKENS_MAX} pages open that are kept up "
                "to date, and no more are",
                hint="the page is shown all the same: reload it now and then",
            )
        self._open[name] += 1
        return lambda: self._free(name)

    def _free(self, name: str) -> None:
        self._open[name] -= 1
        if not self._open[name]:
            del self._open[name]  # tokens come and go
