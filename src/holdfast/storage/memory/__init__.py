"""The store of a node in dictionaries: the same promises as on a disk, but nothing survives the
process.

Each file is the twin of the file of its name in `storage.sqlite` and has the same calls. `undo`
gives transactions and savepoints; `store` puts the parts together.
"""
