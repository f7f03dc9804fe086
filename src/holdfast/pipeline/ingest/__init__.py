"""Logs into bronze, each envelope once.

`plan.py` decides what to read, `divide.py` which task reads what. `take.py` is the work of a task:
it reads, and stages what is new by `dedupe.py` and against `known.py`, the rows of bronze with the
same ids. `doubles.py` settles ids that two tasks have read. `batch.py` commits one batch, and
`ingest.py` carries out a whole plan and confirms to the logs what is safe. What the envelopes mean
is for `fold`.
"""
