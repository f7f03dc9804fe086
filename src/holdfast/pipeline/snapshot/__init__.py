"""Snapshots: the envelopes that a new node needs, written from the lake into a folder.

`build.py` chooses the envelopes and writes the manifest, `files.py` writes the parts on Spark's
executors, `coverage.py` says how far a snapshot covers each log. A node reads a snapshot with
`holdfast.node.snapshots`.
"""
