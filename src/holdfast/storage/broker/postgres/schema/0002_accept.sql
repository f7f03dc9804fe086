-- Accepting is one call: many envelopes in, one answer for each.
--
-- The rows of the meshes are locked first, in one order for all, and stay locked until the commit
-- is visible. So of two groups the second counts on from where the first has ended, and nobody sees
-- a seq before all lower ones. It also means that what is looked up afterwards is current: each
-- statement of this function sees what was committed before it began.
--
-- Envelopes of a group have much in common. A route is one combination of mesh, sender, origin,
-- kind, destination, rank and epoch, and is judged once, however many take it.
--
-- Every lookup must go by an index, one row at a time: a plan that was made when the tables were
-- small must still be good when they are not. A limit makes a lookup of its own out of what the
-- planner would otherwise join as a whole.

CREATE FUNCTION accept(
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
            (mesh, id, epoch, seq, first_seen_at, expires_at, history, fingerprint, broker_id)
        SELECT
            number, id, currents[route], seq, now_ms, now_ms + dedupe_ms, TRUE, fingerprint,
            broker_id
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
