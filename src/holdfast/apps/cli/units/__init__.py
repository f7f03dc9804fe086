"""Units of systemd for a user without root: what stands in one, and how systemd is asked about it.

The units for a whole system, with a user of their own, are files of the project: `packaging`.
"""
