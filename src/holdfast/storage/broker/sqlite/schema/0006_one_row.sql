-- An id, its fingerprint and its broker id stood in two tables. Now a message says all of itself, dedupe only leads from an
-- id to it, and what has to be remembered of one that was removed goes to a table of its own.
--
-- Row by row, in the order of the keys, and with the indexes made before: nothing is sorted, and little is held in memory.
-- A row without its other half, which only damage makes, stays one: what is not known of a message is empty.

ALTER TABLE message RENAME TO message_old;
ALTER TABLE dedupe RENAME TO dedupe_old;
DROP INDEX message_ends;
DROP INDEX message_queued_ends;
DROP INDEX message_urgent;
DROP INDEX dedupe_ends;

CREATE TABLE message (
    place INTEGER PRIMARY KEY,
    kind INTEGER NOT NULL, -- 0 change, 1 topic, 2 dm, 3 queue
    rank INTEGER NOT NULL,
    epoch INTEGER NOT NULL, -- in which it was accepted
    ref TEXT NOT NULL,
    sender BLOB NOT NULL,
    id BLOB NOT NULL,
    broker_id BLOB NOT NULL,
    expires_at INTEGER NOT NULL,
    fingerprint BLOB NOT NULL,
    first_seen_at INTEGER NOT NULL,
    known_until INTEGER, -- so long its id is remembered; NULL: for ever
    raw BLOB NOT NULL -- last, so that a reader who passes over a row does not read it
);
CREATE INDEX message_ends ON message (expires_at) WHERE kind IN (1, 2);
CREATE INDEX message_queued_ends ON message (expires_at) WHERE kind = 3;
CREATE INDEX message_urgent ON message (place) WHERE rank = 0 AND kind IN (1, 2);

-- The place of each id that is known. Its order is that of time, more or less: ids are UUIDv7.
CREATE TABLE dedupe (
    mesh INTEGER NOT NULL,
    id BLOB NOT NULL,
    seq INTEGER NOT NULL,
    PRIMARY KEY (mesh, id)
) WITHOUT ROWID;

-- What is remembered of a message that was removed in its time.
CREATE TABLE gone (
    place INTEGER PRIMARY KEY,
    kind INTEGER, -- as in message; NULL only in rows from before version 4
    epoch INTEGER NOT NULL,
    ref TEXT,
    id BLOB NOT NULL,
    broker_id BLOB NOT NULL,
    fingerprint BLOB NOT NULL,
    first_seen_at INTEGER NOT NULL,
    known_until INTEGER
);
CREATE INDEX gone_ends ON gone (known_until) WHERE known_until IS NOT NULL;

INSERT INTO message
SELECT m.place, m.kind, m.rank,
    coalesce(d.epoch, (
        SELECT max(e.epoch) FROM epoch AS e WHERE e.mesh = m.place >> 40 AND e.base < m.place & ((1 << 40) - 1)
    ), 1),
    m.ref, m.sender, m.id, m.broker_id, m.expires_at, coalesce(d.fingerprint, x''), coalesce(d.first_seen_at, 0),
    d.expires_at, m.raw
FROM message_old AS m LEFT JOIN dedupe_old AS d
ON d.mesh = m.place >> 40 AND d.id = m.id AND d.seq = m.place & ((1 << 40) - 1)
ORDER BY m.place;

INSERT INTO dedupe SELECT mesh, id, seq FROM dedupe_old ORDER BY mesh, id;

INSERT OR IGNORE INTO gone
SELECT (mesh << 40) + seq, kind, epoch, ref, id, broker_id, fingerprint, first_seen_at, expires_at
FROM dedupe_old WHERE history = 0 ORDER BY mesh, id;

DROP TABLE message_old;
DROP TABLE dedupe_old;
