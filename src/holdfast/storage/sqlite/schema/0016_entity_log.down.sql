DROP INDEX log_entity;
CREATE INDEX log_entity ON log (mesh, entity, lamport) WHERE op <> 'fact.append';
