"""Who read what and wrote what, told to a catalog of lineage in the form of OpenLineage.

`events.py` makes the events, which are plain JSON documents. `outlet.py` gives them away: to a file
or to a server. `job_run.py` follows one run of a job and tells how it began and ended.
"""
