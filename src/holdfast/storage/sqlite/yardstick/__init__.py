"""What the engine makes of a disk without us: the other side of every ratio of writes.

`bare_writes` inserts rows like those of a write of ours by plain statements.
"""
