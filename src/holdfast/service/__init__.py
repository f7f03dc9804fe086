"""What any of our long-lived processes is made of: clock, ids, lifecycle, instance lock, sessions,
callers.
"""
