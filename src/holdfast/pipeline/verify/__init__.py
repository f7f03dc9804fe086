"""Does every node hold what its log makes?

`verify.py` runs the comparison and reports. `node_digests.py` gets the digests of a node,
`expected.py` says which places of the lake count for it. `job.py` lets tasks fold the envelopes of
these places (`scatter.py`, `gather.py`), make the lake's digests of the rows (`digests.py`) and
compare them with silver (`silver.py`). Which columns are compared stands in `rules/digests.py`: a
column that is only in silver is not.
"""
