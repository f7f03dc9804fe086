"""Print the part of a lock that is about certain packages, with their hashes.

python3 pick.py requirements.lock node.txt

It fails if the lock lacks one of them. Nothing but Python is needed: it runs before anything else
is installed.
"""

import re
import sys
from pathlib import Path


def pick(lock: str, names: str) -> str:
    by_name = dict[str, str]()
    # A package may stand there several times, each for other versions of Python.
    for block, name in re.findall(r"(?m)^(([\w.-]+)==(?:.*\\\n)*.*\n)", lock):
        by_name[name] = by_name.get(name, "") + block
    wanted = [name for name in names.split("\n") if name and name[0] != "#"]
    missing = [name for name in wanted if name not in by_name]
    if missing:
        sys.exit(f"not in the lock: {', '.join(missing)}")
    return "".join(by_name[name] for name in wanted)


if __name__ == "__main__":
    sys.stdout.write(pick(*(Path(file).read_text(encoding="utf-8") for file in sys.argv[1:3])))
