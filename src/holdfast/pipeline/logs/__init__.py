"""Logs, wherever they are, as Arrow batches with the same columns.

`log.py` says what a log is and opens one by its location. One module for each kind: `http.py` a
node that answers, `broker.py` a mesh at a broker, `disk.py` a home or a backup, `export.py` an
export. `arrow.py` makes the columns of a log, `unpack.py` adds what stands in the bytes of the
envelopes: for whole batches by `ordinary.py` and `ordinary_bodies.py`, which stand on `packed.py`
(msgpack by columns), `layout.py` (where the fields lie) and `fields.py` (those that repeat).
Nothing here starts Spark: tasks of Spark, plans and status all read logs through this room.
"""
