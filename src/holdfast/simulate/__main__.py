"""Tells the stories of seeds, and exits with 1 at the first promise that breaks.

python -m holdfast.simulate nodes 7 8 9
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module

from holdfast.simulate.world.seeds import PromiseBroken

WORLDS = ("nodes", "zones", "delivery", "bus", "quorum")


def main(arguments: Sequence[str]) -> int:
    """The exit code; `arguments` are the name of a world and its seeds."""
    world, *seeds = arguments or [""]
    if world not in WORLDS or not seeds or not all(seed.isdecimal() for seed in seeds):
        print(f"usage: python -m holdfast.simulate {'|'.join(WORLDS)} SEED...", file=sys.stderr)
        return 2
    tell = import_module(f"holdfast.simulate.{world}.{world}").tell
    for seed in map(int, seeds):
        try:
            told = tell(seed)
        except PromiseBroken as broken:
            print(broken)
            return 1
        print(f"seed {seed}: {told.events} events, every promise kept, digest {told.digest}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
