"""One process of `holdfast broker serve --processes`: the parent begins it and tells it its place.

It prints nothing but what it logs, on the stderr of its parent.
"""

from __future__ import annotations

import gc
import logging
import os
import sys
from typing import Any, Final

from holdfast.apps.cli.serving_log import ServingLog
from holdfast.rules import limits
from holdfast.rules.errors import HoldfastError

MODULE: Final = "holdfast.apps.cli.processes.broker"
_STDIN: Final = 0
_LENGTH_BYTES: Final = 4

log = logging.getLogger("holdfast")


def main() -> int:
    from holdfast.apps.web.part import broker_console
    from holdfast.broker.daemon import BrokerDaemon
    from holdfast.broker.processes.crew import Crew, live_no_longer_than
    from holdfast.broker.processes.place import decode_place
    from holdfast.service.http.parts import no_parts
    from holdfast.service.lifecycle import run

    length = int.from_bytes(_read(_LENGTH_BYTES), "big")
    place = decode_place(_read(length))
    live_no_longer_than(_STDIN)

    def heard(event: str, document: dict[str, Any]) -> None:
        if event == "ready":
            # What is there now stays until the end: no collection need look at it again.
            gc.collect()
            gc.freeze()

    def made() -> BrokerDaemon:
        parts = broker_console if place.leads else no_parts
        return BrokerDaemon(place.settings, on_event=heard, parts=parts, crew=Crew(place))

    with ServingLog(place.log_level, place.log_format, as_json=False).logging():
        try:
            return run(made, connections=limits.BROKER_CONNECTIONS_MAX)
        except HoldfastError as error:
            log.error("process %d: %s (%s)", place.number, error.message, error.hint)
            return error.exit_code


def _read(size: int) -> bytes:
    """From the pipe that is the sign of life of the parent; nothing of it is read too far."""
    found = b""
    while len(found) < size:
        part = os.read(_STDIN, size - len(found))
        if not part:
            os._exit(1)
        found += part
    return found


if __name__ == "__main__":
    sys.exit(main())
