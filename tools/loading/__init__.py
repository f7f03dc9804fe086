"""A load of hours on a real broker and real nodes; see `tools/load.py`."""
