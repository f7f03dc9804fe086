DROP TABLE consumer;
