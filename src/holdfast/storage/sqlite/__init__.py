"""A home's database on SQLite, through apsw.

One thread writes (`storage.group_commit`), any number read. apsw is the only SQLite library in the
process, because a second one would drop the first one's locks.

`connection` opens the file, `migrations` brings its tables up to date (`schema/`), `columns`
translates rows. `store` puts the parts together; each part (`meshes`, `log`, `families`, `outbox`
…) has its reads, its writes and its SQL in one file, whose twin in `storage.memory` has the same
name. `bus` has what the peer bus keeps, `committed` what quorums have decided, `ends` what was
deleted, `quorum` the Raft logs, in a file of their own; `wal` brings the write-ahead log into the
database while the store is at work. Vectors take three files: `vector_rows`
(rows and models), `vector_index` (the search), `vector_sketches` (the shortcut for many vectors).
For readers that need no store: `quick_read` (the command line), `log_columns` (the pipeline),
`snapshot_copy`, `integrity` and `space`.
"""
