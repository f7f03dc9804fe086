"""SQLite's write-ahead log while a store is at work.

`checkpoints` brings it into the database beside the writer. What a bad end has left of it is made
sure of by `recovery`.
"""
