-- Segments: many ids by one grant.

CREATE TABLE idgen.segment_request (
    tag          text COLLATE "C" NOT NULL REFERENCES idgen.segment (tag),
    request_key  text COLLATE "C" NOT NULL CHECK (octet_length(request_key) BETWEEN 1 AND 200),
    n            bigint NOT NULL CHECK (n >= 1),
    first_id     bigint NOT NULL,
    requested_by name   NOT NULL,
    requested_at timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    stripe       integer NOT NULL DEFAULT 0,
    stripes      integer NOT NULL DEFAULT 1 CHECK (stripes BETWEEN 1 AND 64),
    stripe_size  bigint CHECK (stripe_size > 0),
    PRIMARY KEY (tag, request_key)
);
CREATE INDEX segment_request_age ON idgen.segment_request (requested_at);
COMMENT ON TABLE idgen.segment_request IS 'Answers to bulk requests that have a key: the same key gets the same ids again. Kept for 7 days; refill workers remove what is older.';
COMMENT ON INDEX idgen.segment_request_age IS 'For the removal of old answers.';
COMMENT ON COLUMN idgen.segment_request.tag IS 'The tag.';
COMMENT ON COLUMN idgen.segment_request.request_key IS 'What the caller calls the request; 1 to 200 bytes.';
COMMENT ON COLUMN idgen.segment_request.n IS 'How many ids it was for.';
COMMENT ON COLUMN idgen.segment_request.first_id IS 'First of these ids; the others follow among those of the stripes that the database had then.';
COMMENT ON COLUMN idgen.segment_request.requested_by IS 'Role that asked first.';
COMMENT ON COLUMN idgen.segment_request.requested_at IS 'When it was granted.';
COMMENT ON COLUMN idgen.segment_request.stripe IS 'Which master the database was then; as idgen.space.stripe.';
COMMENT ON COLUMN idgen.segment_request.stripes IS 'Of how many; 1: one, and the ids are consecutive.';
COMMENT ON COLUMN idgen.segment_request.stripe_size IS 'Ids per stripe; NULL: one master.';
SELECT pg_catalog.pg_extension_config_dump('idgen.segment_request', '');

CREATE FUNCTION idgen_segment_range(tag text, n bigint)
RETURNS int8multirange
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'idgen_segment_range';
COMMENT ON FUNCTION idgen_segment_range(text, bigint) IS
'n ids of a segment tag by one database write, as ranges (one; where several masters share the space, one for each run of ids that are this one''s): all of them, or an error and none. n: 1 to 100,000,000. The step of the tag is left alone. They are the caller''s whatever becomes of its transaction. They are above all that was granted before, so not in order with ids of idgen_segment() that were granted already and not drawn. The id 9223372036854775807 is never among them. Errors: IG005 unknown tag, IG006 fewer than n are left, IG007 not granted within idgen.segment_wait_ms, IG008 rate limited, IG011 not preloaded, IG012 in recovery, IG013 no right, IG017 too many tags, IG024 this transaction has changed the tag, IG030 no authority, IG031 a copy, IG032 the safety burn would pass the limit, IG033 waits for what topic and archive know, IG035 not cut in the stripes of its space, 22023 n out of range, 22004 NULL.';

CREATE FUNCTION idgen_segment_range(tag text, n bigint, request_key text)
RETURNS int8multirange
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'idgen_segment_range_keyed';
COMMENT ON FUNCTION idgen_segment_range(text, bigint, text) IS
'As idgen_segment_range(tag, n), but whoever repeats the call with the same request_key within 7 days gets the same ids, and nothing is granted: for jobs that are repeated when nobody knows how far they came. request_key: 1 to 200 bytes, of this tag; whoever may draw from the tag may use any key. The answer is kept with the grant, so it survives a crash, and is part of a dump. Errors: as idgen_segment_range(tag, n), and IG025 the key was used for another n.';

CREATE FUNCTION idgen_segment_batch(tag text, n bigint)
RETURNS SETOF bigint
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'idgen_segment_batch';
COMMENT ON FUNCTION idgen_segment_batch(text, bigint) IS
'n ids of a segment tag by one database write, in rising order: idgen_segment_range(tag, n) as rows, in constant memory. Errors: the same.';

CREATE FUNCTION idgen_segment_batch(tag text, n bigint, request_key text)
RETURNS SETOF bigint
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'idgen_segment_batch_keyed';
COMMENT ON FUNCTION idgen_segment_batch(text, bigint, text) IS
'idgen_segment_range(tag, n, request_key) as rows, in rising order and constant memory. Errors: the same.';
