"""Bronze into silver, by the merge rules of the nodes.

`silver.py` keeps the tables up to date, `current.py` reads them. A fold counts what is new
(`count.py`), plans who does what (`plan.py`), and lets tasks carry it out in one exchange:
`scatter.py` reads bronze, sifts by `sieve.py` and decodes, `gather.py` merges by `merge.py` and
writes. Who makes which rows follows from the buckets of their keys (`buckets.py`,
`spark_hash.py`).

`fold.py` is the same fold as pure functions on Spark frames, for readers, with `winners.py`.

A column of silver is declared in `lake/schema.py`. It is filled in `decode.py` if it stands in the
body, in `columns.py` if bronze has it, and in `tasks.py` for tasks; the other files take columns as
they are.
"""
