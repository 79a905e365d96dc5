-- Parsing: NULL for what is not such an id, never a made-up date.
SET timezone = 'UTC';

-- Golden ids: the first and the last of each format, and one in between.
SELECT f.format, i.id, p.*
  FROM (VALUES ('classic', 0), ('classic', 914921407366844416), ('classic', 9223372036854775807),
               ('regional', 914921407366844416), ('regional', 9223372036854775807),
               ('sharded', 1), ('sharded', 9223372036854775807)) AS i (f, id)
  CROSS JOIN LATERAL (SELECT i.f AS format) f
  CROSS JOIN LATERAL idgen_parse(i.id, f.format) p;

SELECT idgen_timestamp(914921407366844416) AS classic, idgen_timestamp(0) AS epoch;
SELECT idgen_timestamp(-1), idgen_timestamp((-9223372036854775808)::bigint, 'sharded'), idgen_timestamp(NULL::bigint);
SELECT idgen_parse(-1), idgen_parse(NULL::bigint);
SELECT idgen_timestamp(1, 'no such format');
SELECT idgen_parse(1, '');
SELECT idgen_parse(1, repeat('x', 1000000));

-- RFC 9562, appendix A.6, and what is not version 7.
SELECT idgen_timestamp('017F22E2-79B0-7CC3-98C4-DC0C0C07398F'::uuid), idgen_parse('017F22E2-79B0-7CC3-98C4-DC0C0C07398F'::uuid);
SELECT idgen_timestamp('550e8400-e29b-41d4-a716-446655440000'::uuid) AS v4,
       idgen_timestamp('00000000-0000-0000-0000-000000000000'::uuid) AS nil,
       idgen_timestamp('ffffffff-ffff-ffff-ffff-ffffffffffff'::uuid) AS max,
       idgen_timestamp('017f22e2-79b0-7cc3-18c4-dc0c0c07398f'::uuid) AS other_variant,
       idgen_parse('550e8400-e29b-41d4-a716-446655440000'::uuid) AS parsed;
-- The last millisecond of 48 bits.
SELECT idgen_timestamp('ffffffff-ffff-7000-8000-000000000000'::uuid);

-- Immutable enough for a generated column and an index.
CREATE TABLE parsed (id bigint, at timestamptz GENERATED ALWAYS AS (idgen_timestamp(id)) STORED);
INSERT INTO parsed (id) VALUES (914921407366844416), (-1), (NULL);
SELECT * FROM parsed;
DROP TABLE parsed;
