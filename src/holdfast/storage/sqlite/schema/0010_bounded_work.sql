-- Each turn keeps how the task stands after it, so that a late turn is joined from its place on.

ALTER TABLE task_event ADD COLUMN standing BLOB;    -- NULL: stored before turns had standings
ALTER TABLE task_event ADD COLUMN opened INTEGER;   -- the generation that this turn has opened
CREATE INDEX task_event_named ON task_event (mesh, task, generation)
  WHERE kind IN ('claim', 'release');
CREATE INDEX task_event_opened ON task_event (mesh, task, opened) WHERE opened IS NOT NULL;
CREATE INDEX task_event_create ON task_event (mesh, task) WHERE kind = 'create';
CREATE INDEX task_event_without_standing ON task_event (mesh, task) WHERE standing IS NULL;

-- What sync and sweeps ask of the outbox again and again is found, not searched for.
CREATE INDEX spool_needed ON spool (offset) WHERE state IN ('pending', 'inflight', 'dead');
CREATE INDEX spool_messages ON spool (lane, created_at, number) WHERE state = 'pending' AND entity = '';
