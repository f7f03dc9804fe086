ALTER TABLE mesh DROP COLUMN task_floor;
DROP INDEX task_ended;
DROP TABLE buried_task;
