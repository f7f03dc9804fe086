"""The Spark format `holdfast`, reading: logs as tables and as streams.

`source.py` is what Spark calls, with all options and the batch reader; `stream.py` the stream
reader; `plan.py` divides logs into ranges and batches; `filters.py` passes Spark's filters on to
the logs. Writing is in `sink`. The lake reads logs by `ingest`, which shares `plan.py`.
"""
