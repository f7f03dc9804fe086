"""What stands above the engines: strong writes, the writes that wait, honest reads, leases.

A program asks the `QuorumApi` of its home. In the process that holds the quorums that is a
`LocalQuorum`; it needs of an engine only what `node/quorum/ports.py` names, so all of this is the
same on every engine.

    local_quorum   the verbs of the api, for all meshes
    strong_writes  a strong write of a mesh, from the request to its receipt
    making         an intent: its id, stamp and fingerprint, and what is known of that id already
    receipts       what a caller gets for what became of an intent
    lane           each step of a write that waits, as one durable write
    replay         writes that wait for a quorum are tried again, in their order
    reads          how fresh a read is, and the snapshots that degraded reads name
    duties         what a coordinator does beside writing: leases end, nodes are lost, tasks move
    news           who waits for something to be folded
    surfaces       the same by the names of the source document
    operators      what the host of the groups does for operators
"""
