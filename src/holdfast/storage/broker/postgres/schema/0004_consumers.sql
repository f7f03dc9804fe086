-- Named readers of a whole mesh, and what went before they had confirmed it.
CREATE TABLE consumer (
    mesh       INTEGER NOT NULL REFERENCES mesh ON DELETE CASCADE,
    key        BYTEA NOT NULL,
    name       TEXT COLLATE "C" NOT NULL,
    seq        BIGINT NOT NULL,             -- everything up to here is confirmed
    added_at   BIGINT NOT NULL,
    seen_at    BIGINT NOT NULL,
    lost       BIGINT NOT NULL DEFAULT 0,
    lost_first BIGINT NOT NULL DEFAULT 0,
    lost_last  BIGINT NOT NULL DEFAULT 0,
    PRIMARY KEY (mesh, key, name)
) WITH (fillfactor = 70);
