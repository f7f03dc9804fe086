"""A world in a box: nodes, disks and time from one seed, so that a failing run can be run again
exactly.
"""
