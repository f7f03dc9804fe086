"""The Raft logs of a node in a file of their own: `quorum_log` is what others open.

    quorum.db  quorum.db-wal  quorum.db-shm    the rows (`rows`, `writes`, `schema`)
    quorum.mark                                what the file must show at least (`mark`)
    quorum.ballast                             room for votes on a full disk (`reserve`)
    quorum.lock                                one process at a time

`engine` is the writing connection under the group commit; it raises the mark before an answer that
must not be forgotten. `opening` looks whether the file is whole and no older than it was (`check`
reads all rows), and says which groups must rejoin.
"""
