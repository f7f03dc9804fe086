DROP TABLE task_event;
DROP TABLE task;
