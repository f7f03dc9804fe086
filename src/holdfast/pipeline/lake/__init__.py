"""The lake: a folder of Delta tables, and how one of them is changed.

`lake.py` knows which tables there are, `schema.py` their columns, `reads.py` how far each log was
read; `checked.py` compares that with what the tables hold (`held.py`, `compare.py`).
`delta.py` reads and commits one table; tasks write its files by `writer.py` and read them by
`reader.py`, and `scan.py` makes frames of them where Spark cannot. What the rows mean is decided in
`ingest` and `fold`, not here.

Where it lies: `location.py` reads how a place is named, `storage_options.py` how it is reached,
`object_store.py` is the client for stores, and `folder.py` is the one interface for files on a disk
and in a store. Nothing else asks which of the two a lake is in, except to flush a disk.

A lake that was made before a column was added reads as null there; `pipeline backfill` makes a new
lake in which it is filled. A change that older code would misread raises the format in `lake.py`.
"""
