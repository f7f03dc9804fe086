-- What the quorum of a mesh has committed, as members bring it: each number once.
CREATE TABLE commit_order (
    mesh INTEGER PRIMARY KEY REFERENCES mesh (number) ON DELETE CASCADE,
    engine TEXT NOT NULL,
    incarnation INTEGER NOT NULL,
    tag BLOB NOT NULL,
    fence TEXT NOT NULL, -- of the last one
    first INTEGER NOT NULL, -- from this number on every commit is held
    last INTEGER NOT NULL,
    state_number INTEGER NOT NULL, -- 0: no state
    state_sha256 TEXT NOT NULL,
    state_size INTEGER NOT NULL
);
CREATE TABLE commit_line (
    mesh INTEGER NOT NULL,
    number INTEGER NOT NULL,
    expires_at INTEGER NOT NULL,
    record BLOB NOT NULL,
    raw BLOB NOT NULL,
    PRIMARY KEY (mesh, number)
);
