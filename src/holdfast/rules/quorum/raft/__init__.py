"""Raft as published, as pure code: how the voters of one group agree on one log.

A **group** decides for one scope (a mesh). Its **voters** elect a **leader** for a **term**; the
leader puts proposals into its log, and an entry is committed when the disks of a majority, the
leader's among them, have it. The sources' words map so: coordinator = leader, lease epoch = term,
scope = group, lease fence = (incarnation, term, index) of an entry. The protocol is that of
Ongaro's dissertation with pre-vote, check-quorum, transfer of leadership, learners, reads by
confirmation and changes of one member at a time with the later correction; nothing in it is of our
own making. Why: docs/decisions/0073-raft-as-published.md.

`machine.step(state, event)` gives the next state and the effects. It reads no clock and draws no
lots: time comes as ticks, and a tick brings a random number along. It holds no payload: a log is
runs of terms (`log`), and effects name ranges of entries that the driver has.

**What the caller does, in this order, for every step:**

1. Hand in what waited on the links before a tick that is late, and say `NodeStalled` after a stall.
2. Give `effects.write` to the disk: one transaction, in the order of the numbers, term and vote and
   log together. Keep its entries at hand until they are committed and sent.
3. Send `effects.send` at once. A `SendAppend` is filled with entries (`effects.filled`), a
   `SendSnapshot` starts a transfer on a lane of its own. Heartbeats of all groups between two nodes
   may go in one frame.
4. Keep `effects.send_after` until the disk has the write of that number; then send, and say
   `DiskWrote` with number, term and last index of the write. Never say it earlier.
5. Apply `effects.apply`, once and in order; store how far with what was applied.
6. Tell callers (`proposals`, `reads`): a read is served when this node has applied up to its index;
   what is held is proposed again at `retry_held`. No answer within the caller's time means that
   nobody knows: the same id is sent again.
7. A failed sync is never tried again: say `DiskChanged("failed")`. A home that was restored or
   copied, or whose log is damaged other than by a torn end, starts `barred`.

    config, log        who belongs to the group; which entry is of which term
    messages           what members tell each other, with bounds on every field
    events, effects    what goes into a step and what comes out
    state, turn        what a node remembers; one step in the making
    machine            one step: which rule answers which event
    admission          which messages are heard, and what their term does
    election, roles    who leads; what a change of role clears
    sending            what the leader sends
    replication        what members answer to it
    following          how a member takes entries, commits and snapshots
    commit             what is committed
    reads              linearizable reads, by confirmation
    proposals          what callers want in the log, and where it goes
    membership         changing who belongs to the group
    transfer           handing leadership over
    disk               what the disk has; hung, full and failed ones
    sleep              groups without work cost nothing
"""
