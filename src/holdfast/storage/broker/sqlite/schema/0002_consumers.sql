-- Named readers of a whole mesh, and what went before they had confirmed it.
CREATE TABLE consumer (
    mesh INTEGER NOT NULL REFERENCES mesh (number) ON DELETE CASCADE,
    key BLOB NOT NULL,
    name TEXT NOT NULL,
    seq INTEGER NOT NULL, -- everything up to here is confirmed
    added_at INTEGER NOT NULL,
    seen_at INTEGER NOT NULL,
    lost INTEGER NOT NULL DEFAULT 0,
    lost_first INTEGER NOT NULL DEFAULT 0,
    lost_last INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (mesh, key, name)
) WITHOUT ROWID;
