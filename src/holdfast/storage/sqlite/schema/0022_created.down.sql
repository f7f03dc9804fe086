ALTER TABLE file DROP COLUMN created_at;
ALTER TABLE memory DROP COLUMN created_at;
