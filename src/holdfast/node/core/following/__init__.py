"""How a node without a vote catches up with what a quorum has committed: by pages from a source,
and by the committed state as an object where pages no longer reach back far enough.
"""
