"""Every error that Holdfast raises, by its name: `from holdfast.errors import TaskTaken`.

    try:
        mesh.tasks.claim(task)
    except TaskTaken:
        ...

`Refused`, `Unknown` and `Broken` are the families; docs/reference/errors.md lists all of them.
"""

from holdfast.rules.errors import *  # noqa: F403
