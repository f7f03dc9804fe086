-- The peer bus: what it must remember, and the messages that wait.

-- What has come of each peer, by its key: the highest number, and which of the ones below it (rules/bus/replay.py).
CREATE TABLE bus_mark (
  peer    BLOB PRIMARY KEY,
  highest INTEGER NOT NULL,
  seen    BLOB NOT NULL
) STRICT, WITHOUT ROWID;

-- Nonces in the order in which they came, many in a row: a row of an index for each would cost more than its message.
CREATE TABLE bus_nonces (
  number INTEGER PRIMARY KEY,
  nonces BLOB NOT NULL
) STRICT;

-- Ids of messages that came, until their sender cannot send them again.
CREATE TABLE bus_sender (
  number INTEGER PRIMARY KEY,
  name   TEXT NOT NULL UNIQUE
) STRICT;
CREATE TABLE bus_known (
  sender INTEGER NOT NULL,
  id     BLOB NOT NULL,
  until  INTEGER NOT NULL,
  PRIMARY KEY (sender, id)
) STRICT, WITHOUT ROWID;
CREATE INDEX bus_known_until ON bus_known (until);

-- Messages that came and that no handler has finished with.
CREATE TABLE bus_inbox (
  number      INTEGER PRIMARY KEY,
  sender      BLOB NOT NULL,     -- its key
  received_at INTEGER NOT NULL,
  seal        INTEGER NOT NULL,  -- the number of the key that sealed the body; 0: it is in the clear
  head        BLOB NOT NULL,     -- the message without its body
  body        BLOB NOT NULL
) STRICT;

-- Messages that wait for peers. Each belongs to the row of the outbox with its number, which has no place in the log.
CREATE TABLE bus_message (
  number     INTEGER PRIMARY KEY REFERENCES spool (number) ON DELETE CASCADE,
  kind       INTEGER NOT NULL,
  expires_at INTEGER,
  seal       INTEGER NOT NULL,
  head       BLOB NOT NULL,
  body       BLOB NOT NULL
) STRICT;
CREATE INDEX bus_message_expires ON bus_message (expires_at) WHERE expires_at IS NOT NULL;
CREATE INDEX bus_message_request ON bus_message (number) WHERE kind = 3;

-- Durable subscriptions: of peers, by their name, and under the empty name our own.
CREATE TABLE bus_interest (
  name     TEXT PRIMARY KEY,
  patterns TEXT NOT NULL  -- JSON list
) STRICT, WITHOUT ROWID;

-- The keys that seal bodies, themselves sealed by what the owner of the home gives.
CREATE TABLE bus_seal (
  number     INTEGER PRIMARY KEY,
  key        BLOB NOT NULL,
  created_at INTEGER NOT NULL
) STRICT;

-- A row for a peer holds no entry of the log, so it stands in neither index.
DROP INDEX spool_needed;
DROP INDEX spool_messages;
CREATE INDEX spool_needed ON spool (offset) WHERE state IN ('pending', 'inflight', 'dead') AND offset > 0;
CREATE INDEX spool_messages ON spool (lane, created_at, number) WHERE state = 'pending' AND entity = '' AND offset > 0;
