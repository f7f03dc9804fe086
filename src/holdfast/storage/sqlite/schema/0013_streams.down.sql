DROP TABLE stream_place;
DROP TABLE stream;
ALTER TABLE mesh DROP COLUMN on_bus;
