DROP INDEX message_queued_ends;
DROP INDEX message_ends;
CREATE INDEX message_ends ON message (expires_at) WHERE kind > 0;
