-- The Raft logs of a node. A place is the number of a log and an index in one integer (see rows.py), so
-- that entries of all groups are appended to one table in the order of their key. Numbers are never
-- given twice: a log that is given up keeps its rows under the old number until they are swept.

CREATE TABLE meta (
    name TEXT PRIMARY KEY, -- store, generation, numbers
    value ANY NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE quorum_group (
    id INTEGER PRIMARY KEY,
    scope TEXT NOT NULL UNIQUE,
    incarnation INTEGER NOT NULL,
    tag BLOB NOT NULL,
    entry_tag BLOB NOT NULL, -- the tag when the log began: entries are summed with it
    voter INTEGER NOT NULL,
    standing TEXT NOT NULL,
    reason TEXT NOT NULL,
    number INTEGER NOT NULL UNIQUE
) STRICT;

CREATE TABLE head (
    id INTEGER PRIMARY KEY, -- of the group
    term INTEGER NOT NULL,
    vote INTEGER NOT NULL,
    commit_index INTEGER NOT NULL,
    written INTEGER NOT NULL,
    base INTEGER NOT NULL,
    base_term INTEGER NOT NULL,
    last INTEGER NOT NULL,
    last_term INTEGER NOT NULL,
    sum BLOB NOT NULL -- of these and of the group's row
) STRICT;

CREATE TABLE boundary (
    id INTEGER PRIMARY KEY, -- of the group
    config BLOB NOT NULL,   -- the voters as of the base
    sum BLOB NOT NULL
) STRICT;

CREATE TABLE entry (
    place INTEGER PRIMARY KEY,
    term INTEGER NOT NULL,
    kind INTEGER NOT NULL,
    payload BLOB NOT NULL,
    sum BLOB NOT NULL
) STRICT;

CREATE INDEX entry_config ON entry (place) WHERE kind = 2;

CREATE TABLE run ( -- where a term begins in a log; it reaches to the next run or the end
    place INTEGER PRIMARY KEY,
    term INTEGER NOT NULL
) STRICT;

CREATE TABLE used_voter (
    scope TEXT NOT NULL,
    voter INTEGER NOT NULL,
    PRIMARY KEY (scope, voter)
) STRICT, WITHOUT ROWID;

CREATE TABLE intake ( -- the snapshot that comes in for a group
    id INTEGER PRIMARY KEY, -- of the group
    number INTEGER NOT NULL UNIQUE, -- of its parts
    idx INTEGER NOT NULL,
    term INTEGER NOT NULL,
    config BLOB NOT NULL,
    size INTEGER NOT NULL,
    digest BLOB NOT NULL,
    received INTEGER NOT NULL,
    installed INTEGER NOT NULL
) STRICT;

CREATE TABLE intake_part (
    place INTEGER PRIMARY KEY, -- number and first byte
    content BLOB NOT NULL,
    sum BLOB NOT NULL
) STRICT;

CREATE TABLE given_up ( -- numbers whose entries, runs and parts are to be removed
    number INTEGER PRIMARY KEY
) STRICT;
