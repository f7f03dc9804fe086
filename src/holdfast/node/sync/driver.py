"""The loop around a conversation: carries out what the machine returns, gives back what came of it.

The daemon and the simulator run this same loop. They differ in the port: in the daemon an effect
runs in a thread and the line is a WebSocket, in the simulator it runs when the world's calendar
says so. Effects are begun in the order in which the machine returned them, and nothing is begun
after `Close`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from holdfast.node.sync.conversation import Conversation
from holdfast.node.sync.effects import Close, Effect

Ended = Callable[[Any], None]
"""Gets the result of an effect, or the exception that it ended with."""


class EffectPort(Protocol):
    """What carries effects out."""

    def begin(self, effect: Effect, ended: Ended) -> None:
        """Begins an effect. `ended` is called once, at once or later; not after `close`."""

    def wake_at(self, ticks_ms: int | None) -> None:
        """When `Driver.on_time` is to be called; replaces what was asked for before."""

    def hold_back(self, full: bool) -> None:
        """Whether frames have to stay on the line: what was read fills the conversation."""

    def close(self, close: Close) -> None:
        """Hangs up. The last call."""


class Driver:
    """Runs one conversation. All of it belongs to one thread."""

    def __init__(self, talk: Conversation, port: EffectPort) -> None:
        self._talk, self._port = talk, port
        self._effects: deque[Effect] = deque()
        self._carrying = False
        self.is_over = False

    def begin(self) -> None:
        self._port.wake_at(self._talk.deadline)

    def on_time(self) -> None:
        self.feed(self._talk.on_time)

    def lost(self, error: Exception) -> None:
        """The line is gone."""
        self.feed(lambda: [Close(error=error)])

    def feed(self, event: Callable[[], Sequence[Effect]]) -> None:
        """Lets the machine take an event, and carries out what follows."""
        if self.is_over:
            return
        try:
            self._effects.extend(event())
        except Exception as error:
            self._effects.append(Close(error=error))
        if self._carrying:
            return  # an effect that ended at once: its turn comes behind those that wait
        self._carrying = True
        try:
            while self._effects and not self.is_over:
                self._carry_out(self._effects.popleft())
        finally:
            self._carrying = False
        if not self.is_over:
            self._port.hold_back(self._talk.is_full)
            self._port.wake_at(self._talk.deadline)

    def _carry_out(self, effect: Effect) -> None:
        if isinstance(effect, Close):
            self.is_over = True
            self._port.close(effect)
        else:
            self._port.begin(effect, lambda result: self._ended(effect, result))

    def _ended(self, effect: Effect, result: Any) -> None:
        if isinstance(result, Exception):
            self.feed(lambda: self._talk.failed(effect, result))
        else:
            self.feed(lambda: self._talk.done(effect, result))
