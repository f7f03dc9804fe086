"""How fast, against what. `make bench` runs every file here; `make bench ONLY=vectors` runs one.

A file that measures has one function:

    def run() -> Iterable[tuple[str, float, str]]:
        yield "durable write against the bare engine", 0.83, ">= 0.80"

that is: what was compared, our figure divided by the other's, and the target. Both sides of a
ratio are measured in the same run on the same disk, in turns, because the same code differs by a
factor of two from one minute to the next on a busy machine. Files that start with an underscore
are shared code and are not run.
"""
