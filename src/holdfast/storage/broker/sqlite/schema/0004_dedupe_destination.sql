-- Where what was accepted under an id went: kept as long as the id, also when the message is gone. NULL only in rows from
-- before whose message was gone already.
ALTER TABLE dedupe ADD COLUMN kind INTEGER; -- as in message
ALTER TABLE dedupe ADD COLUMN ref TEXT;
UPDATE dedupe SET (kind, ref) = (
    SELECT m.kind, m.ref FROM message AS m
    WHERE m.place = (dedupe.mesh << 40) + dedupe.seq AND m.id = dedupe.id
) WHERE history = 1;
