"""What one write and one arrival go through, from the call to the tables.

Here is what every part of a node is made of: the engine that runs reads and writes against the
store, the operations of the library, and the way in for envelopes from elsewhere. Who calls (the
library, HTTP, links, sync) and where the rows rest (`storage`) do not belong here.

A **local write**: `operations` checks a request and makes a `change`; `engine` (for threads) or
`loop_writer` (for coroutines and HTTP) runs it; the change is stamped and appended to the log, and
`fold`, with `fold_tasks`, brings it into its table. Changes that wait at the same time are carried
out together (`runs/plain_changes`). `files` is the part of sharing files that is no
transaction, `metrics` counts, and `views` is what callers get back.

An **arrival**: `object_transfer` brings the objects that a batch names; `receive` cuts the batch
into pieces and stores each with its quarantine; `intake` checks every envelope, appends it to the
log as it came, and folds it like a local one.

A **committed entry** of a quorum: `commit` folds a run of them on the view of `commit_view`, with
the index of the engine in the same transaction; `runs/plain_commits` folds a run of plain ones in
sets; `write_queue` keeps what found no quorum.
"""
