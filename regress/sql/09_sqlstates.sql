-- Every refusal with its SQLSTATE, primary, detail and hint; what fails elsewhere in this suite by its text
-- is here by its code. Numbers are masked.
CREATE FUNCTION pg_temp.refusal(statement text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    state text; message text; detail text; hint text;
BEGIN
    EXECUTE statement;
    RETURN 'no error';
EXCEPTION WHEN OTHERS THEN
    GET STACKED DIAGNOSTICS state = RETURNED_SQLSTATE, message = MESSAGE_TEXT, detail = PG_EXCEPTION_DETAIL, hint = PG_EXCEPTION_HINT;
    RETURN regexp_replace(concat_ws(E'\n', state || ' ' || message, detail, hint), '\d+ ms', 'N ms', 'g');
END $$;
-- lease: cell; revision; floor and deadline from now in ms; the rest is right.
CREATE FUNCTION pg_temp.install(
    revision bigint, contract integer DEFAULT 1, boot uuid DEFAULT NULL, cell uuid DEFAULT NULL,
    format text DEFAULT 'classic', floor_in bigint DEFAULT 1, deadline_in bigint DEFAULT 60000)
RETURNS text LANGUAGE sql AS $$
    SELECT pg_temp.refusal(pg_catalog.format(
        'SELECT idgen.install_lease(%s, %L, %L, %L, ''worker'', 500, 20, %s, %s, %s, %s, %s, %s)',
        contract, coalesce(boot, c.boot_id), coalesce(cell, c.cell_id), format, revision,
        c.wall_ms + floor_in, c.wall_ms + 1000, c.boottime_ms + deadline_in, c.wall_ms, c.boottime_ms))
      FROM idgen.server_clock() c
$$;
\pset format unaligned
\pset tuples_only on
SET idgen.lease_wait_ms = 0;
SELECT count(idgen.fence_lease(c.boot_id, s.kind, s.identity, s.token_epoch, s.token_revision)) > 0
  FROM idgen.slots s, idgen.server_clock() c WHERE s.state <> 'fenced';
SELECT pg_temp.refusal('SELECT idgen_snowflake()');
SELECT pg_temp.refusal('SELECT idgen_snowflake(7)');
-- Drained: whoever asks hears why, at once; longer texts are cut between two characters.
SET idgen.lease_wait_ms = '60s';
SELECT idgen.note_drained('server db-a was drained at noon by me: a new kernel');
SELECT state, drained FROM idgen.health;
SELECT pg_temp.refusal('SELECT idgen_snowflake()');
SELECT pg_temp.refusal('SELECT idgen_snowflake(7)');
SELECT idgen.note_drained(repeat('r', 255) || U&'\00E4');
SELECT length(drained) FROM idgen.health;
SELECT idgen.note_drained(NULL);
SELECT state, drained FROM idgen.health;
SET idgen.lease_wait_ms = 0;
SELECT pg_temp.refusal('SELECT idgen_snowflake(NULL)');
SELECT pg_temp.refusal('SELECT idgen_snowflake(8192)');
BEGIN;
SELECT idgen.register_format('taken', '2020-01-01+00', 41, 10, 12);
SELECT pg_temp.refusal($$SELECT idgen.register_format('taken', '2020-01-01+00', 41, 11, 11)$$);
SELECT pg_temp.refusal($$SELECT idgen.register_format('x', '2020-01-01+00', 41, 11, 12)$$);
ROLLBACK;
SELECT pg_temp.refusal($$SELECT idgen_segment('missing')$$);
SELECT idgen_create_segment('one', limit_id => 1), idgen_segment('one');
SELECT pg_temp.refusal($$SELECT idgen_segment('one')$$);
SELECT pg_temp.refusal($$SELECT idgen_create_segment('one')$$);
SELECT pg_temp.refusal($$SELECT idgen_create_segment('two', step => 0)$$);
SELECT split_part(pg_temp.refusal($$SELECT idgen_create_segment('two', step => 2147483648)$$), E'\n', 1);
SELECT pg_temp.refusal($$SELECT idgen_segment(NULL)$$);
SELECT idgen_create_segment('three', step => 3, max_step => 3, limit_id => 100), idgen_segment_range('three', 2, 'key');
SELECT pg_temp.refusal($$SELECT idgen_segment_range('three', 99)$$);
SELECT pg_temp.refusal($$SELECT idgen_segment_range('three', 0)$$);
SELECT pg_temp.refusal($$SELECT idgen_segment_range('three', 1, '')$$);
SELECT pg_temp.refusal($$SELECT idgen_segment_batch('three', 1, 'key')$$);
SELECT pg_temp.refusal($$SELECT idgen_seek_segment('three', 2)$$);
SELECT pg_temp.refusal($$SELECT idgen_seek_segment('three', 101)$$);
SELECT pg_temp.refusal($$SELECT idgen_seek_segment('three', 99)$$);
SELECT pg_temp.refusal($$SELECT idgen_alter_segment('three', limit_id => 1)$$);
SELECT pg_temp.refusal($$SELECT idgen_alter_segment('three', limit_id => 0)$$);
SELECT pg_temp.refusal($$SELECT idgen_alter_segment('three', step => 4)$$);
SELECT pg_temp.refusal($$SELECT idgen_alter_segment('three')$$);
SELECT pg_temp.refusal($$SELECT idgen_alter_segment('three', fetch_limit => -1)$$);
SELECT pg_temp.refusal($$SELECT idgen_alter_segment('three', owner => 'missing')$$);
BEGIN;
SELECT idgen_alter_segment('three', max_step => 4);
SELECT pg_temp.refusal($$SELECT idgen_segment('three')$$);
ROLLBACK;
CREATE ROLE idgen_stranger;
SET ROLE idgen_stranger;
SELECT pg_temp.refusal($$SELECT idgen_segment('one')$$);
SELECT pg_temp.refusal($$SELECT idgen_drop_segment('one')$$);
SELECT idgen_create_segment('its');
SELECT pg_temp.refusal($$SELECT idgen_alter_segment('its', owner => 'postgres')$$);
SELECT idgen_drop_segment('its');
SELECT pg_temp.refusal($$SELECT idgen_create_segment('its', limit_id => 1)$$);
RESET ROLE;
SELECT idgen_drop_segment('three');
SELECT pg_temp.refusal($$SELECT idgen_create_segment('three', limit_id => 2)$$);
CREATE SEQUENCE idle;
SELECT pg_temp.refusal($$SELECT idgen_adopt_sequence('idle', 'idle')$$);
SELECT pg_temp.refusal($$SELECT idgen_adopt_sequence('pg_class', 'idle')$$);
SELECT pg_temp.refusal($$SELECT idgen_release_sequence('one')$$);
SET ROLE idgen_stranger;
SELECT pg_temp.refusal($$SELECT idgen_adopt_sequence('idle', 'idle')$$);
RESET ROLE;
DROP SEQUENCE idle;
DROP ROLE idgen_stranger;
SELECT pg_temp.refusal($$SELECT idgen_parse(1, 'nonsense')$$);
-- Public and sealed ids; IG021 and IG022 need a key file and are in the end-to-end tests (seal.rs).
SELECT pg_temp.refusal($$SELECT idgen_public_id('missing')$$);
SELECT pg_temp.refusal($$SELECT idgen_public_id('No_prefix')$$);
SELECT pg_temp.refusal($$DELETE FROM idgen.prefix$$);
SELECT pg_temp.refusal($$SELECT idgen_seal(1, 'ord')$$);
-- The control functions.
SELECT pg_temp.install(1, contract => 7);
SELECT pg_temp.install(1, boot => gen_random_uuid());
SELECT pg_temp.install(1, deadline_in => -5);
SELECT pg_temp.install(1, format => 'regional');
SELECT pg_temp.install(2);
SELECT pg_temp.install(1);
SELECT regexp_replace(pg_temp.install(3, cell => gen_random_uuid()), '[0-9a-f]{8}-[0-9a-f-]{27}\.', 'UUID.');
-- A region that the data directory remembers, and a file that names none.
COPY (SELECT 2) TO PROGRAM 'cat >pg_idgen_region';
SELECT pg_temp.install(3);
SELECT pg_temp.install(3, format => 'regional/1');
COPY (SELECT 'two') TO PROGRAM 'cat >pg_idgen_region';
SELECT pg_temp.install(3);
COPY (SELECT 1) TO PROGRAM 'cat >/dev/null; rm pg_idgen_region';
SELECT regexp_replace(pg_temp.install(3, floor_in => -60000), '\d{13}', 'MS', 'g');
SELECT pg_temp.refusal('SELECT idgen.fence_lease(gen_random_uuid(), ''worker'', 1, 1, 1)');
SELECT pg_temp.refusal('SELECT idgen.segment_changed()');
