"""What follows from what: values in, values out.

Ids, clock, order, envelope, bodies, fingerprint, merge, frontier, errors and limits are here, and
one module for each decision that a node or a broker makes: what a link does next, what leaves the
outbox, what a sweep may forget, whether a clock is believed. The rows of all stores are here too,
because decisions are about them. The room is flat: a module is found by the name of its decision.

    what an envelope is     envelope, ids, names, paths, bodies, fingerprint, lamport, order,
                            rebuild (an envelope from the row that it made), structs
    what merging does       merge, tasks, reconcile, vectors, sketches, digests
    what arrives            arrivals, fact_decoder, filters, message, destinations
    who reads, what goes    frontier, retention, keeping, data_classes, disk_pressure, clock_check
    links and brokers       links, broker_sync, backoff, outbox, features, close_codes, keys,
                            invites
    what stores hold        rows, broker_rows
    what all rooms use      errors, limits

Nothing here reads a file, a clock or a random number, and nothing here logs. Callers hand those in
as values and carry out what comes back. A rule asks other rules only.
"""
