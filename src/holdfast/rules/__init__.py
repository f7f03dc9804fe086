"""What follows from what: values in, values out.

Ids, clock, order, envelope, fingerprint, merge, frontier, errors and limits live here. Nothing here
reads a file, a clock or a random number, and nothing here logs; whoever calls hands those in and
carries out what comes back.
"""
