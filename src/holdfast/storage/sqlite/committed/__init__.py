"""What quorums have committed, in a node's database: `entities` with their revisions, and in
`quorum_state` where this node stands, commit records, leases and all else.
"""
