-- Where what was accepted under an id went: kept as long as the id, also when the message is gone. NULL only in rows from
-- before whose message was gone already.
ALTER TABLE dedupe ADD COLUMN kind TEXT COLLATE "C", ADD COLUMN ref TEXT COLLATE "C";
UPDATE dedupe d SET kind = p.kind, ref = p.ref
FROM message p WHERE d.history AND p.mesh = d.mesh AND p.seq = d.seq AND p.id = d.id;

-- As in 0002 and 0003, where they are explained, with the two columns.
CREATE OR REPLACE FUNCTION accept(
    now_ms BIGINT, keep_ms BIGINT, dedupe_ms BIGINT,
    slugs TEXT[],            -- of the meshes, each once
    -- The routes:
    meshes TEXT[], senders BYTEA[], origins TEXT[], kinds TEXT[], refs TEXT[], ranks SMALLINT[],
    epochs BIGINT[],
    -- The envelopes:
    routes INTEGER[],        -- which route each takes; empty if there is only one
    twins INTEGER[],         -- the first that has the same mesh and id; empty if all are different
    heads BYTEA,             -- 64 bytes of each: id, fingerprint, broker id
    raws BYTEA[]
) RETURNS TABLE (
    verdict SMALLINT,        -- see VERDICTS in accepting.py
    mesh_epoch BIGINT,       -- the mesh's current one
    at_epoch BIGINT, at_seq BIGINT,
    -- Only for an id that is known:
    seen_at BIGINT, seen_broker_id BYTEA, seen_fingerprint BYTEA, seen_history BOOLEAN
) LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_material = off
SET work_mem = '64MB'
AS $$
#variable_conflict use_column
DECLARE
    numbers INTEGER[];       -- of the routes' meshes; 0 if there is none
    currents BIGINT[];       -- their epochs
    lasts BIGINT[];          -- their last seqs
    gates SMALLINT[];        -- what is wrong with a route before ids are looked at; 0: nothing
    lates SMALLINT[];        -- and after
BEGIN
    PERFORM FROM mesh WHERE slug = ANY (slugs) ORDER BY slug FOR NO KEY UPDATE;

    SELECT
        array_agg(coalesce(m.number, 0) ORDER BY r.place),
        array_agg(coalesce(m.epoch, 0) ORDER BY r.place),
        array_agg(coalesce(m.seq, 0) ORDER BY r.place),
        array_agg(CASE
            WHEN m.number IS NULL THEN 3
            WHEN b.here IS NOT TRUE THEN 4
            WHEN CASE WHEN r.kind = 'change' THEN 'write' ELSE 'send' END <> ALL (b.grants)
                OR (r.origin <> b.name AND 'relay' <> ALL (b.grants)) THEN 5
            ELSE 0
        END::SMALLINT ORDER BY r.place),
        array_agg(CASE
            WHEN r.epoch NOT IN (0, m.epoch) THEN 6
            WHEN r.kind = 'change' THEN 0
            WHEN r.kind = 'dm' THEN CASE WHEN (
                SELECT t.removed_at IS NULL FROM member t
                WHERE t.mesh = m.number AND t.hex = r.ref
            ) THEN 0 ELSE 7 END
            WHEN EXISTS (
                SELECT FROM destination t
                WHERE t.mesh = m.number AND t.kind = r.kind AND t.ref = r.ref
            ) THEN 0
            ELSE 7
        END::SMALLINT ORDER BY r.place)
    INTO numbers, currents, lasts, gates, lates
    FROM unnest(meshes, senders, origins, kinds, refs, epochs)
        WITH ORDINALITY AS r (mesh, sender, origin, kind, ref, epoch, place)
    LEFT JOIN LATERAL (
        SELECT number, epoch, seq FROM mesh WHERE slug = r.mesh LIMIT 1
    ) m ON TRUE
    LEFT JOIN LATERAL (
        SELECT removed_at IS NULL AS here, name, grants FROM member
        WHERE mesh = m.number AND key = r.sender LIMIT 1
    ) b ON TRUE;

    RETURN QUERY
    WITH judged AS MATERIALIZED (
        SELECT
            a.*, numbers[a.route] AS number, gates[a.route] AS gate, lates[a.route] AS late,
            d.epoch AS d_epoch, d.seq AS d_seq, d.first_seen_at AS d_at, d.history AS d_history,
            d.fingerprint AS d_fingerprint, d.broker_id AS d_broker_id
        FROM (
            SELECT
                n, coalesce(routes[n], 1) AS route, coalesce(twins[n], n) AS twin,
                substr(heads, n * 64 - 63, 16) AS id,
                substr(heads, n * 64 - 47, 32) AS fingerprint,
                substr(heads, n * 64 - 15, 16) AS broker_id
            FROM generate_series(1, cardinality(raws)) AS n
            OFFSET 0
        ) a
        LEFT JOIN LATERAL (
            SELECT epoch, seq, first_seen_at, history, fingerprint, broker_id FROM dedupe
            WHERE mesh = numbers[a.route] AND id = a.id LIMIT 1
        ) d ON TRUE
    ), led AS (
        -- Of several with one id in this group, the first that is in order is taken.
        SELECT *, min(n) FILTER (WHERE gate = 0 AND late = 0 AND d_seq IS NULL)
            OVER (PARTITION BY twin) AS leader
        FROM judged
    ), placed AS MATERIALIZED (
        SELECT *, lasts[route] + count(*) FILTER (WHERE leader = n)
            OVER (PARTITION BY number ORDER BY n ROWS UNBOUNDED PRECEDING) AS seq
        FROM led
    ), messages AS (
        INSERT INTO message
            (mesh, seq, epoch, expires_at, rank, kind, ref, id, sender, broker_id, raw)
        SELECT
            number, seq, currents[route], now_ms + keep_ms, ranks[route], kinds[route],
            refs[route], id, senders[route], broker_id, raws[n]
        FROM placed WHERE leader = n
    ), remembered AS (
        INSERT INTO dedupe
            (mesh, id, epoch, seq, first_seen_at, expires_at, history, fingerprint, broker_id,
            kind, ref)
        SELECT
            number, id, currents[route], seq, now_ms, now_ms + dedupe_ms, TRUE, fingerprint,
            broker_id, kinds[route], refs[route]
        FROM placed WHERE leader = n
    ), queued AS (
        INSERT INTO queue (mesh, seq, ref, rank, visible_at, deliveries)
        SELECT number, seq, refs[route], ranks[route], 0, 0
        FROM placed WHERE leader = n AND kinds[route] = 'queue'
    ), counted AS (
        UPDATE mesh SET seq = c.seq
        FROM (SELECT number, max(seq) AS seq FROM placed WHERE leader = n GROUP BY number) c
        WHERE mesh.number = c.number
    )
    SELECT
        CASE
            WHEN gate <> 0 THEN gate
            WHEN d_seq IS NOT NULL THEN CASE WHEN d_fingerprint = fingerprint THEN 1 ELSE 2 END
            WHEN leader = n THEN 0
            -- Judged by its first twin, which is read in accepting.py.
            WHEN leader < n THEN 8
            ELSE late
        END::SMALLINT,
        currents[route],
        coalesce(d_epoch, currents[route]),
        coalesce(d_seq, CASE WHEN leader = n THEN seq ELSE leader END),
        d_at, d_broker_id, d_fingerprint, d_history
    FROM placed ORDER BY n;
END
$$;

CREATE OR REPLACE FUNCTION accept_alike(
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
        (mesh, id, epoch, seq, first_seen_at, expires_at, history, fingerprint, broker_id,
         kind, ref)
    SELECT
        place, substr(heads, n * 64 - 63, 16), current, last + n, now_ms, now_ms + dedupe_ms, TRUE,
        substr(heads, n * 64 - 47, 32), substr(heads, n * 64 - 15, 16), of_kind, to_ref
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
