-- Tasks that have ended are forgotten like deletions: what is left is their name, so that no late turn brings one back.
CREATE TABLE buried_task (
  mesh TEXT NOT NULL,
  task TEXT NOT NULL,
  PRIMARY KEY (mesh, task)
) STRICT, WITHOUT ROWID;
CREATE INDEX task_ended ON task (mesh, offset) WHERE status IN ('completed', 'cancelled');

-- Names begin with their time. The lowest go beyond a number of them; an unknown task with a name up to this one is too old.
ALTER TABLE mesh ADD COLUMN task_floor TEXT NOT NULL DEFAULT '';
