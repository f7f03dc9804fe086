DELETE FROM job WHERE name = 'leaf';
ALTER TABLE log DROP COLUMN leaf;
