"""The lake: a folder of Delta tables, and how one of them is changed.

`lake.py` knows which tables there are, `schema.py` their columns, `reads.py` how far each log was
read; `checked.py` compares that with what the tables hold (`held.py`, `compare.py`).
`delta.py` reads and commits one table, `folder.py` handles small files on a disk or in an object
store. What the rows mean is decided in `ingest` and `fold`, not here.

A lake that was made before a column was added reads as null there; `pipeline backfill` makes a new
lake in which it is filled. A change that older code would misread raises the format in `lake.py`.
"""
