"""Does every node hold what its log makes?

`verify.py` runs the comparison and reports. `node_digests.py` gets the digests of a node,
`expected.py` says which envelopes of the lake the node must have, `digests.py` makes the lake's
digests of them, `silver.py` compares them with silver. Which columns are compared stands in
`rules/digests.py`: a column that is only in silver is not.
"""
