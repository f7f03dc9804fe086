DROP TABLE warning;
DROP TABLE conflict;
