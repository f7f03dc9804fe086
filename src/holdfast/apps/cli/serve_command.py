"""Answering requests of the bus by a command: the request on its stdin, the reply on its stdout."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Final

from holdfast.bus.received import ReceivedRequest
from holdfast.rules.errors import BadInput, CommandFailed
from holdfast.rules.ids import id_text

_WORDS_BYTES: Final = 500


def serving_command(command: Sequence[str]) -> Callable[[ReceivedRequest], Awaitable[bytes]]:
    """A handler that runs a command for each request. If the request is cancelled, or its time is
    over, the command and all that it started are ended.
    """

    async def answer(request: ReceivedRequest) -> bytes:
        about = {
            "HOLDFAST_SENDER": request.sender,
            "HOLDFAST_SERVICE": request.service,
            "HOLDFAST_ID": id_text(request.id),
        }
        try:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env={**os.environ, **about},
                start_new_session=True,
            )
        except OSError as error:
            raise BadInput(f"{command[0]} cannot be run: {error.strerror}") from None
        try:
            reply, said = await process.communicate(request.body)
        except BaseException:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # the leader of its session
            raise
        if process.returncode:
            words = said[-_WORDS_BYTES:].decode(errors="replace").strip()
            raise CommandFailed(f"{command[0]} ended with {process.returncode}: {words}")
        return reply

    return answer
