-- Snowflakes and UUIDs.

CREATE FUNCTION idgen_snowflake()
RETURNS bigint
LANGUAGE c VOLATILE PARALLEL RESTRICTED
AS 'MODULE_PATHNAME', 'idgen_snowflake';
COMMENT ON FUNCTION idgen_snowflake() IS
'A 64-bit id from this server''s leased worker identities, in the worker format of its cell (classic: 41 bits ms since 2020-01-01 UTC, 10 bits worker, 12 bits sequence). Unique within the cell, always positive, strictly rising within a session. Errors: IG001 no lease, IG002 window used up, IG003 clock went back, IG004 deadline passed, IG010 end of epoch, IG011 not preloaded, IG012 in recovery, IG015 clock stands still. Waits up to idgen.lease_wait_ms for a lease that is likely to come back.';

CREATE FUNCTION idgen_snowflake(shard integer)
RETURNS bigint
LANGUAGE c VOLATILE PARALLEL RESTRICTED
AS 'MODULE_PATHNAME', 'idgen_snowflake_shard';
COMMENT ON FUNCTION idgen_snowflake(integer) IS
'A 64-bit id that carries a logical shard, 0 to 8191 (format sharded: 41 bits ms since 2020-01-01 UTC, 13 bits shard, 10 bits sequence; until 2054-11-03). The shard must be leased to this server. NULL: the shard of setting idgen.shard. Strictly rising per shard; unique within the cell''s shards, not together with ids of idgen_snowflake(): one column takes one format. Errors: IG014 shard not leased here, 22023 no such shard, 22004 none named, and those of idgen_snowflake().';

CREATE FUNCTION idgen_uuidv7()
RETURNS uuid
LANGUAGE c VOLATILE PARALLEL SAFE
AS 'MODULE_PATHNAME', 'idgen_uuidv7';
COMMENT ON FUNCTION idgen_uuidv7() IS
'A UUID version 7 (RFC 9562, 6.2 method 3): 48 bits Unix ms, 12 bits of its fraction, an 18-bit counter and 44 random bits; strictly rising within a backend process. Needs no lease, no preload, and works on a standby.';

CREATE FUNCTION idgen_parse(
    id bigint, format text DEFAULT 'classic',
    OUT ts timestamptz, OUT region integer, OUT version integer,
    OUT worker integer, OUT shard integer, OUT sequence integer)
RETURNS record
LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE
AS 'MODULE_PATHNAME', 'idgen_parse_bigint';
COMMENT ON FUNCTION idgen_parse(bigint, text) IS
'The fields of a snowflake, for debugging, not a contract. format: classic, regional or sharded; an id does not say which one it is of. ts has ms precision. Fields that the format does not have are NULL; all are NULL for a negative id. Error: 22023 unknown format.';

CREATE FUNCTION idgen_parse(id uuid, OUT ts timestamptz, OUT version integer)
RETURNS record
LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE
AS 'MODULE_PATHNAME', 'idgen_parse_uuid';
COMMENT ON FUNCTION idgen_parse(uuid) IS
'Time (ms precision) and version of a UUID version 7; NULLs for any other UUID.';

CREATE FUNCTION idgen_timestamp(id bigint, format text DEFAULT 'classic')
RETURNS timestamptz
LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE
AS 'MODULE_PATHNAME', 'idgen_timestamp_bigint';
COMMENT ON FUNCTION idgen_timestamp(bigint, text) IS
'The time in a snowflake of the given format (classic, regional or sharded), ms precision; NULL for a negative id. Error: 22023 unknown format.';

CREATE FUNCTION idgen_timestamp(id uuid)
RETURNS timestamptz
LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE
AS 'MODULE_PATHNAME', 'idgen_timestamp_uuid';
COMMENT ON FUNCTION idgen_timestamp(uuid) IS
'The time in a UUID version 7, ms precision; NULL for a UUID of another version.';
