-- The short way of accepting. Nearly always all that comes in one group takes one route, and all of
-- it is new: then nothing has to be sorted or told one by one. Numbers are given in the order of
-- the group, and one row tells the first of them.
--
-- Whatever is not so goes the long way, in the same transaction, before anything was written.
-- Locks and lookups are as they are there.

CREATE FUNCTION accept_alike(
    now_ms BIGINT, keep_ms BIGINT, dedupe_ms BIGINT, slugs TEXT[],
    meshes TEXT[], senders BYTEA[], origins TEXT[], kinds TEXT[], refs TEXT[], ranks SMALLINT[],
    epochs BIGINT[], routes INTEGER[], twins INTEGER[], heads BYTEA, raws BYTEA[]
) RETURNS TABLE (
    verdict SMALLINT,        -- 9: all were created, the first at this seq
    mesh_epoch BIGINT, at_epoch BIGINT, at_seq BIGINT,
    seen_at BIGINT, seen_broker_id BYTEA, seen_fingerprint BYTEA, seen_history BOOLEAN
) LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_material = off
AS $$
DECLARE
    many CONSTANT INTEGER := cardinality(raws);
    to_mesh CONSTANT TEXT := meshes[1];
    of_kind CONSTANT TEXT := kinds[1];
    to_ref CONSTANT TEXT := refs[1];
    of_rank CONSTANT SMALLINT := ranks[1];
    by_key CONSTANT BYTEA := senders[1];
    place INTEGER;
    current BIGINT;
    last BIGINT;
    plain BOOLEAN := FALSE;
BEGIN
    IF cardinality(routes) = 0 AND cardinality(twins) = 0 THEN
        SELECT m.number, m.epoch, m.seq INTO place, current, last
        FROM mesh m WHERE m.slug = to_mesh FOR NO KEY UPDATE;
        IF FOUND AND epochs[1] IN (0, current) THEN
            SELECT
                CASE WHEN of_kind = 'change' THEN 'write' ELSE 'send' END = ANY (b.grants)
                AND (origins[1] = b.name OR 'relay' = ANY (b.grants))
                AND CASE
                    WHEN of_kind = 'change' THEN TRUE
                    WHEN of_kind = 'dm' THEN EXISTS (
                        SELECT FROM member t
                        WHERE t.mesh = place AND t.hex = to_ref AND t.removed_at IS NULL
                    )
                    ELSE EXISTS (
                        SELECT FROM destination t
                        WHERE t.mesh = place AND t.kind = of_kind AND t.ref = to_ref
                    )
                END
                AND NOT EXISTS (
                    SELECT FROM generate_series(1, many) AS n CROSS JOIN LATERAL (
                        SELECT FROM dedupe d
                        WHERE d.mesh = place AND d.id = substr(heads, n * 64 - 63, 16) LIMIT 1
                    ) k
                )
            INTO plain
            FROM member b WHERE b.mesh = place AND b.key = by_key AND b.removed_at IS NULL;
        END IF;
    END IF;

    IF plain IS NOT TRUE THEN
        RETURN QUERY SELECT * FROM accept(
            now_ms, keep_ms, dedupe_ms, slugs, meshes, senders, origins, kinds, refs, ranks, epochs,
            routes, twins, heads, raws
        );
        RETURN;
    END IF;

    INSERT INTO message
        (mesh, seq, epoch, expires_at, rank, kind, ref, id, sender, broker_id, raw)
    SELECT
        place, last + n, current, now_ms + keep_ms, of_rank, of_kind, to_ref,
        substr(heads, n * 64 - 63, 16), by_key, substr(heads, n * 64 - 15, 16), raws[n]
    FROM generate_series(1, many) AS n;

    INSERT INTO dedupe
        (mesh, id, epoch, seq, first_seen_at, expires_at, history, fingerprint, broker_id)
    SELECT
        place, substr(heads, n * 64 - 63, 16), current, last + n, now_ms, now_ms + dedupe_ms, TRUE,
        substr(heads, n * 64 - 47, 32), substr(heads, n * 64 - 15, 16)
    FROM generate_series(1, many) AS n;

    IF of_kind = 'queue' THEN
        INSERT INTO queue (mesh, seq, ref, rank, visible_at, deliveries)
        SELECT place, last + n, to_ref, of_rank, 0, 0 FROM generate_series(1, many) AS n;
    END IF;

    UPDATE mesh m SET seq = last + many WHERE m.number = place;

    verdict := 9;
    mesh_epoch := current;
    at_epoch := current;
    at_seq := last + 1;
    RETURN NEXT;
END
$$;
