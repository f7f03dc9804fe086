"""What stands once it is decided or appended, in a node's database: `entities` with their
revisions, in `quorum_state` where this node stands, commit records, leases and all else that
quorums have committed, and in `audit` the events of audit streams. Beside them, and in no log,
stands the rest of the matrix: `telemetry`, which never leaves.
"""
