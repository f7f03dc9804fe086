"""The embedded engine: nodes of a mesh vote among themselves, by Raft.

`rules/quorum/raft` decides everything; this room carries out what it decides, in its order: save,
send, apply, and only then tell callers.

    ports            what a driver needs: a disk, a network, a fold
    group_driver     one group on one node: events in, effects carried out
    commit_words     that something is committed is told with the next entries, if they come soon
    entry_cache      payloads of the newest entries, for followers and for the fold
    open_proposals   what callers wait for: until it is applied, or their time is over
    open_changes     changes of members, and transfers of leadership, that callers wait for
    open_reads       reads that wait for the leader's confirmation and for our own fold
    committed_entries   the envelopes among entries, with their fences
    log_disk, store_fold, voter_links   the disk, the fold and the network of a real node
    order            a group as strong writes and reads see it
    groups, group    all groups of this node, and time for them
    beginnings       how this node comes to belong to one
    operators        begin, add, remove, hand over, recover
    sent_snapshots   snapshots for members that lack what the log has dropped
    incoming_snapshot   the one that comes in: parts, a check, then the machine hears of it
    state_snapshots  what is in them: everything that was committed in a mesh

Everything runs in one thread (an event loop's), and nothing here waits: answers of the disk and of
the fold come as calls. That is why the simulator runs this very code.
"""
