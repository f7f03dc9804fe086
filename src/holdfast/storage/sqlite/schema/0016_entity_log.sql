-- Changes of entities are found by their revisions and commits, never by what the log says they are about. In the index
-- by entity each of them would cost a page in random order.
DROP INDEX log_entity;
CREATE INDEX log_entity ON log (mesh, entity, lamport) WHERE op <> 'fact.append' AND op <> 'entity.change';
