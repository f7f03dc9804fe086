ALTER TABLE message RENAME TO message_new;
ALTER TABLE dedupe RENAME TO dedupe_new;
DROP INDEX message_ends;
DROP INDEX message_queued_ends;
DROP INDEX message_urgent;

CREATE TABLE dedupe (
    mesh INTEGER NOT NULL,
    id BLOB NOT NULL,
    fingerprint BLOB NOT NULL,
    epoch INTEGER NOT NULL,
    seq INTEGER NOT NULL,
    broker_id BLOB NOT NULL,
    first_seen_at INTEGER NOT NULL,
    expires_at INTEGER, -- NULL: never
    history INTEGER NOT NULL DEFAULT 1, -- 0: its message was removed in its time
    kind INTEGER, -- as in message
    ref TEXT,
    PRIMARY KEY (mesh, id)
) WITHOUT ROWID;
CREATE INDEX dedupe_ends ON dedupe (expires_at) WHERE history = 0 AND expires_at IS NOT NULL;

CREATE TABLE message (
    place INTEGER PRIMARY KEY,
    kind INTEGER NOT NULL, -- 0 change, 1 topic, 2 dm, 3 queue
    rank INTEGER NOT NULL,
    ref TEXT NOT NULL,
    sender BLOB NOT NULL,
    id BLOB NOT NULL,
    broker_id BLOB NOT NULL,
    expires_at INTEGER NOT NULL,
    raw BLOB NOT NULL -- last, so that a reader who passes over a row does not read it
);
CREATE INDEX message_ends ON message (expires_at) WHERE kind IN (1, 2);
CREATE INDEX message_queued_ends ON message (expires_at) WHERE kind = 3;
CREATE INDEX message_urgent ON message (place) WHERE rank = 0 AND kind IN (1, 2);

-- An id that leads to nothing cannot go along: without a fingerprint nothing could be answered by it.
INSERT INTO dedupe
SELECT n.mesh, n.id, coalesce(m.fingerprint, g.fingerprint), coalesce(m.epoch, g.epoch), n.seq,
    coalesce(m.broker_id, g.broker_id), coalesce(m.first_seen_at, g.first_seen_at),
    CASE WHEN g.place IS NULL THEN m.known_until ELSE g.known_until END, g.place IS NULL,
    CASE WHEN g.place IS NULL THEN m.kind ELSE g.kind END, CASE WHEN g.place IS NULL THEN m.ref ELSE g.ref END
FROM dedupe_new AS n
LEFT JOIN message_new AS m ON m.place = (n.mesh << 40) + n.seq AND m.id = n.id
LEFT JOIN gone AS g ON g.place = (n.mesh << 40) + n.seq AND g.id = n.id
WHERE m.place IS NOT NULL OR g.place IS NOT NULL
ORDER BY n.mesh, n.id;
UPDATE mesh SET dedupe = (SELECT count(*) FROM dedupe AS d WHERE d.mesh = mesh.number);

INSERT INTO message
SELECT place, kind, rank, ref, sender, id, broker_id, expires_at, raw FROM message_new ORDER BY place;

DROP TABLE message_new;
DROP TABLE dedupe_new;
DROP TABLE gone;
