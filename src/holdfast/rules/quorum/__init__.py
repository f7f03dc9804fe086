"""What the quorum of a mesh decides: values in, values out.

`raft` is the consensus protocol of the embedded engine: who leads, what is committed, who votes.
The other modules decide what is committed with it. Nothing here reads a clock, a file or a random
number.
"""
