"""A mixed load for minutes or hours on a real broker and real nodes, as processes.

    python tools/load.py --minutes 60
    python tools/load.py --minutes 60 --postgres

Three nodes share a mesh: they write to every family, send to a topic, to each other and to a queue,
go offline, and are killed, as the broker is in the first third of the time. What may be forgotten
is kept for a minute, and swept. It ends with the figures, and with 1 if memory or a file grows, if
something was lost or came twice, or if the broker's ids and messages do not match.
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

if __name__ == "__main__":
    sys.path[:0] = [str(ROOT), str(ROOT / "src")]
    sys.exit(import_module("tools.loading.main").main())
