"""Logs into bronze, each envelope once.

`plan.py` decides what to read, `read_ranges.py` lets Spark read it, `batch.py` commits one batch,
`dedupe.py` decides for each row whether it is new, and `ingest.py` carries out a whole plan and
confirms to the logs what is safe. What the envelopes mean is for `fold`.
"""
