"""Reading this node's log: for consumers, for other nodes, and for questions about the past.

`log` is the log for the library, `serve` the same for other nodes and programs, with a caller whose
grants narrow every read; both use the steps of `consumers`. `watch` wakes readers that wait for the
log to grow. `history` folds a part of the log again to show the state as of a point in the past.
`digests` sums up what the node holds, to compare it with another node or with the lake.

Writing the log is not done here: that is `node.core`, which this room asks for reads and for the
few writes that concern consumers. What a frontier, a filter or a digest means is in `rules`.
"""
