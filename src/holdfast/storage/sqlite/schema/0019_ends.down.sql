DROP TABLE log_hole;
DROP TABLE ended_mesh;
ALTER TABLE mesh DROP COLUMN ending;
