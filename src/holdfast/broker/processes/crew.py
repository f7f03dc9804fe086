"""What a process of a broker knows of the others, and how it asks them.

The process lives no longer than its parent: a thread reads from a pipe that the parent holds open,
and its end is the end of the process, as a crash would be, even while the loop is busy.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import threading
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import TimeoutError as TooLate
from contextlib import AsyncExitStack, suppress
from typing import Final

from holdfast.broker.processes.line import ProcessLine
from holdfast.broker.processes.place import ProcessPlace
from holdfast.broker.processes.words import Load, ProcessReply, Question, Ready, Reload, Stop, Word
from holdfast.rules import limits
from holdfast.service.listeners import ListenSettings
from holdfast.storage.files.home import HomePaths
from holdfast.transport.handed import HandedSocket
from holdfast.transport.listeners import Listener
from holdfast.transport.tls import certificate_digest, certificate_in, server_context

log = logging.getLogger("holdfast")

_TENTH: Final = 10

Respond = Callable[[bytes], Awaitable[bytes]]


class Crew:
    """The other processes, as one of them sees them."""

    def __init__(self, place: ProcessPlace) -> None:
        self.place = place
        self.on_stop: Callable[[], None] = lambda: None
        self.on_reload: Callable[[], None] = lambda: None
        self.connections: Callable[[], int] = lambda: 0
        """How many this process serves."""
        self._answers: dict[str, Respond] = {}
        self._asked: dict[int, asyncio.Future[bytes | None]] = {}
        self._number = 0
        self._handed: list[HandedSocket] = []
        self._line: ProcessLine | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def others(self) -> list[int]:
        return [
            number
            for number in range(1, self.place.settings.processes + 1)
            if number != self.place.number
        ]

    # --- what it serves ----------------------------------------------------------------------

    def listeners(
        self, paths: HomePaths, settings: ListenSettings, ending: AsyncExitStack
    ) -> tuple[list[Listener], bytes]:
        """The listeners of the parent, and the digest of the certificate that the TLS one shows
        (empty without one).
        """
        found: list[Listener] = []
        digest = b""
        for shared in self.place.listeners:
            tls = None
            if shared.kind == "tls":
                cert, key = certificate_in(paths.root, settings.tls_cert, settings.tls_key)
                digest, tls = certificate_digest(cert), server_context(cert, key)
            handed = HandedSocket(shared.fd)
            ending.callback(handed.close)
            self._handed.append(handed)
            found.append(Listener(shared.kind, handed, shared.address, tls, shared=True))
        return found, digest

    # --- the line ----------------------------------------------------------------------------

    async def begin(self, ending: AsyncExitStack) -> None:
        """Begins to hear what the others say."""
        self._loop = asyncio.get_running_loop()
        self._line = await ProcessLine.of(socket.socket(fileno=self.place.line_fd))
        ending.callback(self._line.close)
        for work in (self._hear(), self._tell_load()):
            task = asyncio.create_task(work)
            ending.callback(task.cancel)

    def ready(self) -> None:
        self._say(Ready())

    def answers(self, what: str, respond: Respond) -> None:
        """From now on this process answers what others ask by that word."""
        self._answers[what] = respond

    async def ask(self, to: int, what: str, body: bytes = b"") -> bytes | None:
        """What another process answers; None if it is not there, or busy for too long."""
        if to not in self.others:
            return None
        self._number += 1
        number = self._number
        done = self._asked[number] = asyncio.get_running_loop().create_future()
        try:
            self._say(Question(number, self.place.number, to, what, body))
            async with asyncio.timeout(limits.PROCESS_ASK_MS_MAX / limits.SECOND_MS):
                answer: bytes | None = await done
                return answer
        except TimeoutError:
            return None
        finally:
            del self._asked[number]

    async def ask_all(self, what: str) -> dict[int, bytes | None]:
        """What each of the others answers."""
        found: Sequence[bytes | None] = await asyncio.gather(
            *(self.ask(number, what) for number in self.others)
        )
        return dict(zip(self.others, found, strict=True))

    def ask_from_thread(self, to: int, what: str, body: bytes) -> bytes | None:
        """The same, in any thread but that of the loop."""
        assert self._loop is not None, "it has begun"
        asked = asyncio.run_coroutine_threadsafe(self.ask(to, what, body), self._loop)
        with suppress(TooLate):
            return asked.result(2 * limits.PROCESS_ASK_MS_MAX / limits.SECOND_MS)
        return None

    def _say(self, word: Word) -> None:
        assert self._line is not None, "it has begun"
        self._line.say(word)

    async def _hear(self) -> None:
        assert self._line is not None, "it has begun"
        while (word := await self._line.hear()) is not None:
            if isinstance(word, Stop):
                self.on_stop()
            elif isinstance(word, Reload):
                self.on_reload()
            elif isinstance(word, ProcessReply):
                done = self._asked.get(word.number)
                if done is not None and not done.done():
                    done.set_result(word.body)
            elif isinstance(word, Question):
                task = asyncio.create_task(self._respond(word))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    async def _respond(self, asked: Question) -> None:
        respond = self._answers.get(asked.what)
        body: bytes | None = None
        if respond is not None:
            try:
                body = await respond(asked.body)
            except Exception:
                # The other process must get an answer, and nobody else looks at this task.
                log.exception("a fault of ours in the answer to %r of another process", asked.what)
        self._say(ProcessReply(asked.number, asked.sender, body))

    async def _tell_load(self) -> None:
        said, turn = (-1, -1), 0
        while True:
            now = self.connections(), sum(handed.taken for handed in self._handed)
            if now != said or turn % _TENTH == 0:
                self._say(Load(*now))
                said = now
            turn += 1
            await asyncio.sleep(limits.PROCESS_LOAD_MS / _TENTH / limits.SECOND_MS)


def live_no_longer_than(parent: int) -> None:
    """Ends this process when the other end of this pipe is closed: its parent is gone."""

    def watch() -> None:
        while os.read(parent, 1):
            pass
        os._exit(1)

    threading.Thread(target=watch, name="ends with its parent", daemon=True).start()
