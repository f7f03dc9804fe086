"""The tables of a lake as frames, without Spark.

    import holdfast

    lake = holdfast.lake("lake")
    lake.state.pandas(columns=["mesh", "key", "value"], filters=[("mesh", "=", "site")])

`frame.py` has the frames that users hold and the engines that they come for, `overlay.py` merges
what was folded since into the state, by the rules that Spark follows too, `filters.py` says which
rows are wanted. Arrow does the work; large tables are read as a stream of batches.
"""
