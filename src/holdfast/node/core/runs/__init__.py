"""What is carried out in sets, with what would come of it one by one: runs of local changes, of
arrivals, and of entries that a quorum has committed. Each knows what is plain enough; all else goes
the long way.
"""
