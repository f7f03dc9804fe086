"""What any long-lived process of ours is made of, whether it is a node's daemon or a broker.

    lifecycle, instance_lock, systemd    start, stop, one process for each home, the service manager
    address, listeners                   where it listens
    clock                                time and ids
    sessions, caller                     who calls, proved by a hello, and what that caller may do
    supervision, supervisor              work that runs until it fails, and is run again
    problem                              what went wrong last, for a status
    http/                                the kit that an HTTP API is built from

Nothing here knows what a node or a broker does: a module that needs one of them belongs there. What
follows from a failure of a link or of a broker's connection is decided in `rules`.
"""
