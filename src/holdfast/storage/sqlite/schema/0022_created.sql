-- When the first version of a memory or a file was written; 0 if the one that is here is the first.
-- What was replaced by an earlier Holdfast counts as made when it was last replaced.
ALTER TABLE memory ADD COLUMN created_at INTEGER NOT NULL DEFAULT 0;
ALTER TABLE file ADD COLUMN created_at INTEGER NOT NULL DEFAULT 0;
