DROP TABLE mate;
DROP TABLE heard;
DROP TABLE inbox;
DROP TABLE spool;
-- A shared mesh without its broker is a personal one.
UPDATE mesh SET kind = 'personal' WHERE kind <> 'personal';
ALTER TABLE mesh DROP COLUMN broker_seq;
ALTER TABLE mesh DROP COLUMN broker_epoch;
ALTER TABLE mesh DROP COLUMN server_id;
ALTER TABLE mesh DROP COLUMN broker_card;
ALTER TABLE mesh DROP COLUMN broker_url;
