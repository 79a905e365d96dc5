-- Ways to make one number come twice: savepoints, rollbacks, tags that are dropped and made again in one transaction, prepared transactions, sequences that stand still.
\set ECHO none
\getenv dir PG_ABS_SRCDIR
\set file :dir '/include/refusal.sql'
\i :file
\set ECHO all
SET client_min_messages = warning;

-- A tag that was there comes back with a rollback, so a new one of its name serves nobody before it is committed.
SELECT idgen_create_segment('back', step => 10, max_step => 10);
SELECT array_agg(idgen_segment('back')) FROM generate_series(1, 5);
BEGIN;
SELECT idgen_drop_segment('back');
SELECT idgen_create_segment('back');
SELECT pg_temp.refusal($$SELECT idgen_segment('back')$$);
SELECT pg_temp.refusal($$SELECT idgen_segment_range('back', 5)$$);
SELECT idgen_alter_segment('back', step => 20, max_step => 20);
ROLLBACK;
SELECT array_agg(idgen_segment('back')) FROM generate_series(1, 30);
SELECT idgen_drop_segment('back');
SELECT max_id AS gone_at FROM idgen.segment WHERE tag = 'back' \gset
BEGIN;
SELECT idgen_create_segment('back');
SELECT pg_temp.refusal($$SELECT idgen_segment('back')$$);
SAVEPOINT s;
SELECT idgen_drop_segment('back');
SELECT idgen_create_segment('back', start_id => 1000);
SELECT pg_temp.refusal($$SELECT idgen_segment('back')$$);
ROLLBACK TO s;
COMMIT;
SELECT idgen_segment('back') - :gone_at AS next;

-- One that the transaction has made itself is served, however often it is dropped and made again, and over savepoints.
BEGIN;
SELECT idgen_create_segment('own again', step => 10, max_step => 10);
SELECT idgen_segment('own again');
SELECT idgen_drop_segment('own again');
SELECT idgen_create_segment('own again');
SELECT idgen_segment('own again') > 1 AS above_the_first;
COMMIT;
BEGIN;
SELECT idgen_create_segment('torn again', step => 10, max_step => 10);
SAVEPOINT s;
SELECT idgen_segment('torn again');
ROLLBACK TO s;
SELECT max_id FROM idgen.segment WHERE tag = 'torn again';
-- The row is back, the number is not: nothing is changed to below it.
SELECT pg_temp.refusal($$SELECT idgen_alter_segment('torn again', limit_id => 9)$$);
SELECT pg_temp.refusal($$SELECT idgen_seek_segment('torn again', 10)$$);
SELECT idgen_drop_segment('torn again');
SELECT idgen_create_segment('torn again');
SELECT idgen_segment('torn again') > 1 AS not_again;
COMMIT;
SELECT idgen_segment('torn again') > 11 AS not_again;
SELECT kind, lo, hi FROM idgen.audit_event WHERE tag = 'torn again' AND kind IN ('segment.burn', 'segment.drop') ORDER BY tag_seq;

-- Prepared: made and drawn from, and then finished by another session, or never.
BEGIN;
SELECT idgen_create_segment('two again', step => 10, max_step => 10);
SELECT array_agg(idgen_segment('two again')) FROM generate_series(1, 12);
PREPARE TRANSACTION 'two';
SELECT pg_temp.refusal($$SELECT idgen_segment('two again')$$);
COMMIT PREPARED 'two';
SELECT idgen_segment('two again') > 12 AS not_again;
BEGIN;
SELECT idgen_drop_segment('two again');
SELECT idgen_create_segment('two again');
PREPARE TRANSACTION 'two';
SET idgen.segment_wait_ms = 300;
SELECT left(pg_temp.refusal($$SELECT count(idgen_segment('two again')) FROM generate_series(1, 100)$$), 5);
RESET idgen.segment_wait_ms;
ROLLBACK PREPARED 'two';
SELECT idgen_segment('two again') > 12 AS not_again;

-- Hazard H6 (tinyid): a step of 0 asks the database for ever. Whoever writes the row meets the same limits.
SELECT pg_temp.refusal(format('UPDATE idgen.segment SET %s WHERE tag = ''two again''', change))
  FROM unnest(ARRAY['step = 0', 'step = -1', 'max_step = 0', 'step = 1000001, max_step = 1000001', 'start_id = 0',
                    'limit_id = max_id - 1', 'max_id = limit_id, limit_id = limit_id - 1', 'stripe_count = 0', 'stripe_size = 0']) change;

-- A sequence that stands still is restarted all the same: that gives no number that was given out, and then the error.
CREATE SCHEMA again;
SET search_path = again, public;
CREATE TABLE parcel (id serial PRIMARY KEY, n int);
INSERT INTO parcel (n) SELECT generate_series(1, 10);
SELECT count(*) FROM idgen_adopt_sequence('parcel_id_seq', 'parcel');
INSERT INTO parcel (n) VALUES (11) RETURNING id;
TRUNCATE parcel RESTART IDENTITY;
SELECT nextval('parcel_id_seq');
SELECT pg_temp.refusal($$SELECT nextval('parcel_id_seq')$$);
ALTER SEQUENCE parcel_id_seq RESTART;
SELECT nextval('parcel_id_seq');
INSERT INTO parcel (n) VALUES (12) RETURNING id;
SELECT note FROM idgen_release_sequence('parcel') WHERE action = 'sequence';

-- What draws by way of a domain would meet the error of a sequence that stands still.
CREATE SEQUENCE by_domain;
CREATE TABLE direct (id bigint DEFAULT nextval('by_domain'));
CREATE DOMAIN numbered AS bigint DEFAULT nextval('by_domain');
CREATE TABLE indirect (id numbered, n int);
SELECT pg_temp.refusal($$SELECT idgen_adopt_sequence('by_domain', 'by domain')$$);
ALTER DOMAIN numbered DROP DEFAULT;
SELECT count(*) FROM idgen_adopt_sequence('by_domain', 'by domain');

-- A sequence that is narrower than the column that was widened goes on above the tag, and so does whatever adopts it next.
CREATE TABLE widened (id smallserial, n int);
ALTER TABLE widened ALTER id TYPE int;
SELECT setval('widened_id_seq', 32760);
SELECT note FROM idgen_adopt_sequence('widened_id_seq', 'wider') WHERE action = 'tag';
INSERT INTO widened (n) SELECT generate_series(1, 20);
SELECT max(id) FROM widened;
DELETE FROM widened;
SELECT note LIKE 'goes on at 337__' AS above FROM idgen_release_sequence('wider') WHERE action = 'sequence';
SELECT seqtypid::regtype, seqmax FROM pg_sequence WHERE seqrelid = 'widened_id_seq'::regclass;
SELECT count(*) FROM idgen_adopt_sequence('widened_id_seq', 'wider again');
INSERT INTO widened (n) VALUES (21) RETURNING id > 33760 AS not_again;
SET client_min_messages = warning;
DROP SCHEMA again CASCADE;
SELECT idgen_drop_segment(tag) FROM idgen.segments WHERE tag IN ('back', 'own again', 'torn again', 'two again', 'parcel', 'by domain', 'wider again', 'wider');
