DROP TABLE job;
DROP TABLE consumer;
DROP TABLE forgotten;
DROP TABLE log;
DROP TABLE mesh;
DROP TABLE meta;
