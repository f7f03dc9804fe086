-- A message in a queue stays past its time while it waits. A sweep must not walk over all of those to
-- find what can go, so they have an index of their own.

DROP INDEX message_ends;
CREATE INDEX message_ends ON message (expires_at) WHERE kind IN (1, 2);
CREATE INDEX message_queued_ends ON message (expires_at) WHERE kind = 3;
