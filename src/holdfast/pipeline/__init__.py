"""The pipeline: every node's log in one lake, on Spark.

Logs are read by `source`, kept by `ingest` in `bronze` (every envelope once), folded by `silver` to
what a node would hold, and looked into by `audits`. `lake` says where things are, `delta` how a
table is changed. On a laptop it runs in this process; on a cluster it is the same code.

Nothing else in Holdfast imports Spark: without the extra `spark` a node works as before.
"""
