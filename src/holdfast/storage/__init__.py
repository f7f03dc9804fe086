"""Where envelopes and state rest.

All SQL of the project lives here, and everything that must survive a crash: files are renamed into
place only by `files.durable`. What a change means is decided by `rules`; this package makes it
last.

    ports         what the store of a node must be able to do
    sqlite        that store on a disk; `sqlite.recovery` for damaged databases
    quorum_port   what the store of a node's Raft logs must be able to do; on SQLite and in memory
    memory        the same in dictionaries, for tests, simulations and looks into the past
    group_commit  many writers, one commit at a time: under both
    tickets       one write that waits, and how a group is answered
    fork_gate     what a forked child must not touch
    owned_lock    a lock that an interrupt cannot leave locked
    files         the home, blobs, ballast, and how a file gets on the disk
    broker        what the store of a broker must be able to do, on SQLite and on PostgreSQL
"""
