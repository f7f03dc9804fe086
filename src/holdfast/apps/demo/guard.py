"""A small process beside the demo: when the demo dies, however it dies, this one ends its processes
and removes its folder.

It is the leader of a group of processes, and all that the demo starts joins that group. It waits at
a pipe that the demo holds open. One line with a folder on it says what to remove when the demo is
gone; an empty line, that nothing is to be removed any more. The end of the pipe means that the demo
is gone. It knows nothing of Holdfast and starts in a moment.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
from typing import BinaryIO


def watch(pipe: BinaryIO) -> None:
    folder = b""
    for line in pipe:
        folder = line.rstrip(b"\n")
    group = os.getpgrp()
    if os.fork():
        signal.pause()  # the child ends the group, and this process with it
    os.setpgid(0, 0)
    os.killpg(group, signal.SIGKILL)
    if folder:
        # They may be writing until they are gone.
        for _ in range(5):
            shutil.rmtree(folder, ignore_errors=True)
            if not os.path.lexists(folder):
                break


if __name__ == "__main__":
    # Ctrl-C is for the demo, which then closes the pipe.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    watch(sys.stdin.buffer)
