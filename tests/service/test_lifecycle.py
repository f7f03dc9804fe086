"""What a process that serves does with itself while it serves."""

from __future__ import annotations

import sys
from contextlib import AsyncExitStack

from holdfast.rules.limits import SWITCH_US
from holdfast.service.lifecycle import Service, run


class Brief(Service):
    """Ends as soon as it serves."""

    seen_s = 0.0

    async def reload(self) -> None: ...

    async def _start(self, ending: AsyncExitStack) -> None:
        Brief.seen_s = sys.getswitchinterval()
        self.stop()

    def _tell_ready(self) -> None: ...


def test_D2_threads_change_quickly_while_it_serves_and_as_before_afterwards() -> None:
    usual_s = sys.getswitchinterval()
    assert run(lambda: Brief(on_overtime=lambda: None)) == 0
    assert round(Brief.seen_s * 1_000_000) == SWITCH_US
    assert sys.getswitchinterval() == usual_s
