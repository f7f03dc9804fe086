"""What the commands run: whole jobs on a lake.

`run.py` reads what is new and folds it, `follow.py` does so as logs grow, `sources.py` remembers
the logs of a lake, `status.py` shows how far it is, `compaction.py` makes few large files of many
small ones.
"""
