ALTER TABLE mesh DROP COLUMN forgotten_floor;
DROP TABLE buried;
DROP INDEX log_entity;
CREATE INDEX log_entity ON log (mesh, entity) WHERE op <> 'fact.append';
DROP INDEX conflict_entity;
CREATE INDEX conflict_open ON conflict (mesh, entity) WHERE resolved_at IS NULL;
ALTER TABLE conflict DROP COLUMN base_peer;
ALTER TABLE conflict DROP COLUMN base_lamport;
DROP TABLE state_seen;
