DROP INDEX spool_messages;
DROP INDEX spool_needed;
DROP INDEX task_event_without_standing;
DROP INDEX task_event_create;
DROP INDEX task_event_opened;
DROP INDEX task_event_named;
ALTER TABLE task_event DROP COLUMN opened;
ALTER TABLE task_event DROP COLUMN standing;
