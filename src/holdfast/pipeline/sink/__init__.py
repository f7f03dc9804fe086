"""The Spark format `holdfast`, writing: every row of a table becomes a change on a node.

`sink.py` is what Spark calls and documents all options. For each row `rows.py` makes the change,
with values from `json_values.py` and an id from `ids.py`; `deliver.py` sends changes until the node
has answered each; `refused.py` counts and keeps the rows that the node refused.
"""
