-- Public ids and their registry; sealed ids as far as no key is needed (the rest is in the end-to-end tests).
CREATE ROLE idgen_pub_app; CREATE ROLE idgen_pub_admin;

-- A prefix is registered once and by whom it may be.
SELECT idgen_public_id('ord');
SELECT idgen_register_prefix('ord'), idgen_public_id('ord') ~ '^ord_[0-9A-Za-z]{22}$' AS at_once;
SELECT idgen_register_prefix('ord') AS again;
SET ROLE idgen_pub_app;
SELECT idgen_register_prefix('apps');
SELECT idgen.grant_admin('idgen_pub_app');
INSERT INTO idgen.prefix VALUES ('apps', 'me');
SELECT * FROM idgen.prefix;
SELECT prefix, owner = session_user AS by_us, created_at <= clock_timestamp() AS before_now FROM idgen.prefixes;
SELECT idgen_public_id('ord') IS NOT NULL AS everybody_may_use_it;
RESET ROLE;
SELECT idgen.grant_admin('idgen_pub_admin');
\set VERBOSITY terse
SELECT idgen.grant_admin('no such role');
SELECT idgen.grant_admin(NULL);
\set VERBOSITY default
SET ROLE idgen_pub_admin;
SELECT idgen_register_prefix('admins');
SELECT idgen.seal_key_count();
RESET ROLE;
SELECT prefix, owner FROM idgen.prefixes WHERE owner = 'idgen_pub_admin';

-- The form of a prefix, where one is registered and where one is used.
SELECT idgen_register_prefix('a'), idgen_register_prefix('a234567890123456');
SELECT idgen_register_prefix('');
SELECT idgen_register_prefix('a2345678901234567');
SELECT idgen_register_prefix('1a');
SELECT idgen_register_prefix('a_b');
SELECT idgen_register_prefix('a_');
SELECT idgen_register_prefix('Ord');
SELECT idgen_register_prefix('ord ');
-- A Cyrillic o, and a full-width digit.
SELECT idgen_register_prefix('оrd');
SELECT idgen_register_prefix('ord１');
SELECT idgen_register_prefix(E'o\nd');
SELECT idgen_register_prefix(repeat('a', 10000000));
SELECT idgen_register_prefix(NULL);
SELECT idgen_public_id(NULL);
SELECT idgen_public_id('');
SELECT idgen_public_id('ORD');
SELECT idgen_public_id('оrd');
SELECT idgen_public_id('or');
SELECT idgen_public_id('orde');
SELECT idgen_public_id(repeat('é', 5000000));
SELECT idgen_public_id('%s %n');
\set VERBOSITY terse
INSERT INTO idgen.prefix VALUES ('Not a prefix', 'me');
\set VERBOSITY default

-- A one-way door, for its owner and for superusers too.
DELETE FROM idgen.prefix;
DELETE FROM idgen.prefix WHERE false;
UPDATE idgen.prefix SET prefix = 'other';
UPDATE idgen.prefix SET owner = 'other';
TRUNCATE idgen.prefix;
INSERT INTO idgen.prefix VALUES ('ord', 'me') ON CONFLICT (prefix) DO UPDATE SET owner = 'me';
SELECT idgen.prefix_stays();
SELECT idgen.prefix_changed();

-- What a transaction has registered goes with it, from this session's memory too.
BEGIN;
SELECT idgen_register_prefix('gone'), idgen_public_id('gone') IS NOT NULL AS made;
SELECT idgen_public_id('gone') IS NOT NULL AS remembered;
ROLLBACK;
SELECT idgen_public_id('gone');
BEGIN;
SAVEPOINT a;
SELECT idgen_register_prefix('gone'), idgen_public_id('gone') IS NOT NULL AS made;
ROLLBACK TO a;
SELECT idgen_public_id('gone');
ROLLBACK;
-- And with the extension.
BEGIN;
SELECT idgen_public_id('ord') IS NOT NULL AS made;
DROP EXTENSION pg_idgen;
CREATE EXTENSION pg_idgen;
SELECT idgen_public_id('ord');
ROLLBACK;
SELECT idgen_public_id('ord') IS NOT NULL AS back_again;
-- More prefixes than a session remembers.
SELECT count(idgen_register_prefix('p' || n)) FROM generate_series(1, 200) n;
SELECT bool_and(idgen_public_id('p' || n) LIKE 'p' || n || '\_%') FROM generate_series(1, 200) n;

-- Distinct, and every place takes every digit.
CREATE TEMP TABLE public_ids AS SELECT idgen_public_id('ord') AS id FROM generate_series(1, 20000);
SELECT count(DISTINCT id), min(length(id)), max(length(id)) FROM public_ids;
SELECT count(DISTINCT substr(id, 5, 1)) AS first_digits, max(substr(id, 5, 1) COLLATE "C") AS highest,
       min(n) AS digits_elsewhere
  FROM public_ids, (SELECT count(DISTINCT substr(id, place, 1)) AS n FROM public_ids, generate_series(6, 26) place GROUP BY place) s;
-- A default, each row its own.
CREATE TEMP TABLE with_default (n integer, id text DEFAULT idgen_public_id('ord'));
INSERT INTO with_default SELECT generate_series(1, 1000);
ALTER TABLE with_default ADD COLUMN other text DEFAULT idgen_public_id('ord');
SELECT count(DISTINCT id), count(DISTINCT other) FROM with_default;

-- In parallel workers.
CREATE TABLE many AS SELECT generate_series(1, 10000) AS n;
ALTER TABLE many SET (parallel_workers = 2);
SET parallel_setup_cost = 0; SET parallel_tuple_cost = 0; SET min_parallel_table_scan_size = 0;
EXPLAIN (COSTS OFF) SELECT idgen_public_id('ord') FROM many;
SELECT count(DISTINCT id) FROM (SELECT idgen_public_id('ord') AS id FROM many OFFSET 0) s;
RESET parallel_setup_cost; RESET parallel_tuple_cost; RESET min_parallel_table_scan_size;
DROP TABLE many;

-- A hostile search_path reaches nothing.
CREATE SCHEMA evil;
CREATE FUNCTION evil.equal(text, text) RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'reached as %', current_user; END $$;
CREATE OPERATOR evil.= (FUNCTION = evil.equal, LEFTARG = text, RIGHTARG = text);
CREATE TEMP TABLE prefix (prefix text, owner name);
CREATE TEMP TABLE pg_roles (oid oid, rolname name);
SET search_path = evil, pg_temp, pg_catalog, public;
SELECT public.idgen_register_prefix('evil'), public.idgen_public_id('evil') IS NOT NULL AS made, public.idgen_public_id('p1') IS NOT NULL AS found;
RESET search_path;
DROP SCHEMA evil CASCADE;
DROP TABLE pg_temp.prefix, pg_temp.pg_roles;

-- Sealed ids without a key: a well-formed text is not even looked at, a malformed one is named as such.
SELECT idgen_seal(1, 'ord');
SELECT idgen_open('ord_0000000000000000000000', 'ord');
SELECT idgen_seal(NULL, 'ord'), idgen_seal(1, NULL), idgen_open(NULL, 'ord'), idgen_open('x', NULL);
SELECT idgen.seal_key_count();
SELECT idgen_seal(1, 'Ord');
SELECT idgen_seal(1, '');
SELECT idgen_open('ord_0000000000000000000000', 'or_d');
SELECT idgen_open('', 'ord');
SELECT idgen_open('0000000000000000000000', 'ord');
SELECT idgen_open('ORD_0000000000000000000000', 'ord');
SELECT idgen_open('_0000000000000000000000', 'ord');
SELECT idgen_open('ord_000000000000000000000', 'ord');
SELECT idgen_open('ord_00000000000000000000000', 'ord');
SELECT idgen_open('ord__000000000000000000000', 'ord');
SELECT idgen_open('ord_000000000000000000000-', 'ord');
SELECT idgen_open(' ord_0000000000000000000000', 'ord');
SELECT idgen_open('ord_00000000000000000000é', 'ord');
-- The first text above 128 bits; the last one below is only refused for want of a key.
SELECT idgen_open('ord_7n42DGM5Tflk9n8mt7Fhc8', 'ord');
SELECT idgen_open('ord_7n42DGM5Tflk9n8mt7Fhc7', 'ord');
SELECT idgen_open('ord_zzzzzzzzzzzzzzzzzzzzzz', 'ord');
SELECT idgen_open('ord_' || repeat('0', 10000000), 'ord');
SELECT idgen_open(repeat('é', 5000000), 'ord');
SET ROLE idgen_pub_app;
SELECT idgen.seal_key_count();
-- The path of the key file is for superusers and pg_read_all_settings: no row.
SELECT setting FROM pg_settings WHERE name = 'idgen.seal_key_file';
RESET ROLE;
SET idgen.seal_key_file = '/tmp/keys';

DROP OWNED BY idgen_pub_admin, idgen_pub_app;
DROP ROLE idgen_pub_admin, idgen_pub_app;
