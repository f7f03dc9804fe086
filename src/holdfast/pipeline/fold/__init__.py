"""Bronze into silver, by the merge rules of the nodes.

`silver.py` keeps the tables up to date and reads them. `fold.py` is the fold itself, as pure
functions on Spark frames, with `winners.py` (who wins), `tasks.py` (turns of tasks) and `decode.py`
(bodies of envelopes). A fold of many changes on a local disk is done without Spark rows:
`local_scan.py` finds the winners in the files, `local_partition.py` writes them by bucket,
`local_merge.py` makes the files of the table, and `spark_hash.py` computes buckets as Spark does.

A column of silver is declared in `lake/schema.py`. It is filled in `decode.py` if it stands in the
body, in `fold.py` if bronze has it, and in `tasks.py` for tasks; the other files take columns as
they are.
"""
