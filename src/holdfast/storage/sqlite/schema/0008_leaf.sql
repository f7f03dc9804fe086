-- The leaf hash of each entry (rules/leaf.py): it tells a byte that has changed since it was written.
ALTER TABLE log ADD COLUMN leaf BLOB;

-- Entries that are there already get theirs from the sweep, in small steps; the job knows how far it is.
INSERT INTO job (name, cursor, updated_at)
SELECT 'leaf', json_object('next', min(offset), 'last', max(offset)), 0 FROM log HAVING count(*) > 0;
