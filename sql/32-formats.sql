-- Formats: compiled in, or registered once and never changed.

CREATE TABLE idgen.format (
    name          text COLLATE "C" PRIMARY KEY,
    epoch         timestamptz NOT NULL,
    sign_bits     integer NOT NULL,
    ts_bits       integer NOT NULL,
    region_bits   integer NOT NULL,
    version_bits  integer NOT NULL,
    node_bits     integer NOT NULL,
    seq_bits      integer NOT NULL,
    is_shard      boolean NOT NULL,
    registered_by name NOT NULL,
    registered_at timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    CHECK (sign_bits + ts_bits + region_bits + version_bits + node_bits + seq_bits = 64)
);
COMMENT ON TABLE idgen.format IS 'Formats registered beside the compiled-in ones (view idgen.formats has both). Rows are added by idgen.register_format() only and never change: ids of them exist. Dumped.';
COMMENT ON COLUMN idgen.format.name IS 'A lower-case letter, then lower-case letters, digits or underscores; 31 in all at the most.';
COMMENT ON COLUMN idgen.format.epoch IS 'The moment of timestamp 0; a whole ms.';
COMMENT ON COLUMN idgen.format.sign_bits IS '1: the top bit is always 0. 0: it belongs to the timestamp, and the format ends where it would be set.';
COMMENT ON COLUMN idgen.format.ts_bits IS 'Timestamp, in ms; 41 at the most.';
COMMENT ON COLUMN idgen.format.region_bits IS 'Region; 0: none.';
COMMENT ON COLUMN idgen.format.version_bits IS 'Version; 0: none.';
COMMENT ON COLUMN idgen.format.node_bits IS 'Worker or shard number; 16 at the most, 10 at least for the workers of a cell.';
COMMENT ON COLUMN idgen.format.seq_bits IS 'Sequence within one ms; 12 at the most.';
COMMENT ON COLUMN idgen.format.is_shard IS 'The node is a logical shard, not a worker.';
COMMENT ON COLUMN idgen.format.registered_by IS 'Role that has registered it.';
COMMENT ON COLUMN idgen.format.registered_at IS 'When.';
SELECT pg_catalog.pg_extension_config_dump('idgen.format', '');

CREATE FUNCTION idgen.format_stays()
RETURNS trigger
LANGUAGE c
AS 'MODULE_PATHNAME', 'idgen_format_stays';
COMMENT ON FUNCTION idgen.format_stays() IS 'Trigger: refuses with IG019, because ids in the format may be anywhere.';

CREATE TRIGGER format_stays
BEFORE DELETE OR TRUNCATE OR UPDATE ON idgen.format
FOR EACH STATEMENT EXECUTE FUNCTION idgen.format_stays();
COMMENT ON TRIGGER format_stays ON idgen.format IS 'See idgen.format_stays().';

CREATE FUNCTION idgen.register_format(
    name text, epoch timestamptz, ts_bits integer, node_bits integer, seq_bits integer,
    region_bits integer DEFAULT 0, version_bits integer DEFAULT 0, sign_bits integer DEFAULT 1,
    is_shard boolean DEFAULT false)
RETURNS boolean
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'idgen_register_format';
COMMENT ON FUNCTION idgen.register_format(text, timestamptz, integer, integer, integer, integer, integer, integer, boolean) IS
'Register a layout of 64-bit ids, from the top: sign, timestamp (ms since epoch), region, version, node, sequence. It can then be read by the idgen_*_registered() functions and be made the worker format of a cell (idgenctl format switch). Returns true when registered, false when the very same one was registered before. Errors: IG023 the name has another layout, 22023 a layout that does not hold together (widths sum to 64; at most 41 timestamp and 12 sequence bits; a life of a year at least; epoch a whole ms from 1970 to 2100), 22004 NULL, IG012 in recovery.';
REVOKE ALL ON FUNCTION idgen.register_format(text, timestamptz, integer, integer, integer, integer, integer, integer, boolean) FROM PUBLIC;

CREATE FUNCTION idgen.compiled_formats(
    OUT name text, OUT epoch timestamptz, OUT sign_bits integer, OUT ts_bits integer, OUT region_bits integer,
    OUT version_bits integer, OUT node_bits integer, OUT seq_bits integer, OUT is_shard boolean)
RETURNS SETOF record
LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE ROWS 3
AS 'MODULE_PATHNAME', 'idgen_compiled_formats';
COMMENT ON FUNCTION idgen.compiled_formats() IS 'The formats that are compiled in; columns as idgen.format.';

CREATE FUNCTION idgen_parse_registered(
    id bigint, format text,
    OUT ts timestamptz, OUT region integer, OUT version integer,
    OUT worker integer, OUT shard integer, OUT sequence integer)
RETURNS record
LANGUAGE c STABLE STRICT PARALLEL SAFE
AS 'MODULE_PATHNAME', 'idgen_parse_registered';
COMMENT ON FUNCTION idgen_parse_registered(bigint, text) IS
'As idgen_parse(id, format), for registered formats too, which lie in a table: hence stable, not immutable. Error: 22023 unknown format.';

CREATE FUNCTION idgen_timestamp_registered(id bigint, format text)
RETURNS timestamptz
LANGUAGE c STABLE STRICT PARALLEL SAFE
AS 'MODULE_PATHNAME', 'idgen_timestamp_registered';
COMMENT ON FUNCTION idgen_timestamp_registered(bigint, text) IS
'As idgen_timestamp(id, format), for registered formats too. Error: 22023 unknown format.';

CREATE FUNCTION idgen_snowflake_min_registered(at timestamptz, format text)
RETURNS bigint
LANGUAGE c STABLE STRICT PARALLEL SAFE
AS 'MODULE_PATHNAME', 'idgen_snowflake_min_registered';
COMMENT ON FUNCTION idgen_snowflake_min_registered(timestamptz, text) IS
'As idgen_snowflake_min(at, format), for registered formats too. Error: 22023 unknown format.';

CREATE FUNCTION idgen_snowflake_max_registered(at timestamptz, format text)
RETURNS bigint
LANGUAGE c STABLE STRICT PARALLEL SAFE
AS 'MODULE_PATHNAME', 'idgen_snowflake_max_registered';
COMMENT ON FUNCTION idgen_snowflake_max_registered(timestamptz, text) IS
'As idgen_snowflake_max(at, format), for registered formats too. Error: 22023 unknown format.';
