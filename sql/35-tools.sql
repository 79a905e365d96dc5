-- Batches, bounds in time, and text forms.

CREATE FUNCTION idgen_snowflake_batch(n bigint)
RETURNS SETOF bigint
LANGUAGE c VOLATILE PARALLEL RESTRICTED ROWS 1000
AS 'MODULE_PATHNAME', 'idgen_snowflake_batch';
COMMENT ON FUNCTION idgen_snowflake_batch(bigint) IS
'n snowflakes, rising, made row by row in constant memory; one compare-and-swap claims up to 4,096. With idgen.bulk_slots they come from the workers that it sets apart. For loads by INSERT ... SELECT, and for COPY with ids filled in before. Errors: 22023 n below 1, 22004 NULL, and those of idgen_snowflake().';

CREATE FUNCTION idgen_snowflake_batch(n bigint, shard integer)
RETURNS SETOF bigint
LANGUAGE c VOLATILE PARALLEL RESTRICTED ROWS 1000
AS 'MODULE_PATHNAME', 'idgen_snowflake_shard_batch';
COMMENT ON FUNCTION idgen_snowflake_batch(bigint, integer) IS
'n ids of a logical shard, rising, made row by row in constant memory; one compare-and-swap claims up to 1,024. NULL shard: that of setting idgen.shard. Errors: 22023 n below 1 or no such shard, 22004 n NULL or no shard named, and those of idgen_snowflake(shard).';

CREATE FUNCTION idgen_uuidv7_batch(n bigint)
RETURNS SETOF uuid
LANGUAGE c VOLATILE PARALLEL SAFE ROWS 1000
AS 'MODULE_PATHNAME', 'idgen_uuidv7_batch';
COMMENT ON FUNCTION idgen_uuidv7_batch(bigint) IS
'n UUIDs version 7, strictly rising, made row by row in constant memory. Errors: 22023 n below 1, 22004 NULL.';

CREATE FUNCTION idgen_uuidv7_at(at timestamptz)
RETURNS uuid
LANGUAGE c VOLATILE STRICT PARALLEL SAFE
AS 'MODULE_PATHNAME', 'idgen_uuidv7_at';
COMMENT ON FUNCTION idgen_uuidv7_at(timestamptz) IS
'A UUID version 7 of the given time (microseconds precision) with 62 random bits, to give history its ids; two of one microsecond are in no order. Error: 22008 before 1970, after the year 10889, or infinite.';

CREATE FUNCTION idgen_snowflake_min(at timestamptz, format text DEFAULT 'classic')
RETURNS bigint
LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE
AS 'MODULE_PATHNAME', 'idgen_snowflake_min';
COMMENT ON FUNCTION idgen_snowflake_min(timestamptz, text) IS
'The smallest id of the format whose time is at or after the given one: WHERE id >= idgen_snowflake_min(t), or the FROM of a partition. Clamped: 0 before the epoch, the largest bigint after the end. Error: 22023 unknown format.';

CREATE FUNCTION idgen_snowflake_max(at timestamptz, format text DEFAULT 'classic')
RETURNS bigint
LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE
AS 'MODULE_PATHNAME', 'idgen_snowflake_max';
COMMENT ON FUNCTION idgen_snowflake_max(timestamptz, text) IS
'The largest id of the format whose time is at or before the given one: WHERE id <= idgen_snowflake_max(t). Clamped: -1 before the epoch, the last id after the end. Error: 22023 unknown format.';

CREATE FUNCTION idgen_uuidv7_min(at timestamptz)
RETURNS uuid
LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE
AS 'MODULE_PATHNAME', 'idgen_uuidv7_min';
COMMENT ON FUNCTION idgen_uuidv7_min(timestamptz) IS
'The smallest UUID version 7 whose time (ms precision) is at or after the given one, whoever made it. Clamped to 1970 and to the end of 48 bits of ms.';

CREATE FUNCTION idgen_uuidv7_max(at timestamptz)
RETURNS uuid
LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE
AS 'MODULE_PATHNAME', 'idgen_uuidv7_max';
COMMENT ON FUNCTION idgen_uuidv7_max(timestamptz) IS
'The largest UUID version 7 whose time (ms precision) is at or before the given one, whoever made it. Clamped to 1970 and to the end of 48 bits of ms.';

CREATE FUNCTION idgen_cursor_floor(id bigint, overlap interval, format text DEFAULT 'classic')
RETURNS bigint
LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE
AS 'MODULE_PATHNAME', 'idgen_cursor_floor';
COMMENT ON FUNCTION idgen_cursor_floor(bigint, interval, text) IS
'Where a cursor that has read up to a snowflake of the format reads again from, so that rows that became visible late or came from a server with a slower clock are not missed: the smallest id of (time of id - overlap), 0 at the least. NULL for a negative id. Error: 22023 for an overlap that is negative or has months or days, or an unknown format.';

CREATE FUNCTION idgen_encode(id bigint)
RETURNS text
LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE
AS 'MODULE_PATHNAME', 'idgen_encode';
COMMENT ON FUNCTION idgen_encode(bigint) IS
'An id as 13 characters of Crockford''s base 32, for JSON, where a number above 2^53 is rounded. Texts sort as their ids do. Not a secret: see idgen_decode(). Error: 22023 for a negative number.';

CREATE FUNCTION idgen_decode(encoded text)
RETURNS bigint
LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE
AS 'MODULE_PATHNAME', 'idgen_decode';
COMMENT ON FUNCTION idgen_decode(text) IS
'The id that idgen_encode() has written; lower case, I and L for 1, O for 0 and hyphens are understood. Error: 22P02 for anything else.';
