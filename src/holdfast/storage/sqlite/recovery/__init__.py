"""What is done to a damaged or half-written database.

`repair` makes a new database of what a damaged one still gives. It reads around the damage
(`salvage`), looks for entries in the pages themselves (`pages`), and checks rows that cannot be
made from the log (`trust_rows`, `delivery_rows`). `swap` puts the new file in the place of the old
one, which is kept; `wal` makes sure of what a killed process left in the write-ahead log. When to
do any of this is decided by `node.recovery`.
"""
