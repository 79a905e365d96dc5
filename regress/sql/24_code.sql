-- Generators inside of functions, triggers, rules, views and cursors, and over the ends of transactions.
\set ECHO none
\getenv dir PG_ABS_SRCDIR
\set file :dir '/include/lease.sql'
\i :file
\set file :dir '/include/refusal.sql'
\i :file
\set ECHO all
SELECT pg_temp.lease(340), idgen_create_segment('code');
CREATE TABLE made (id bigint PRIMARY KEY, uid uuid UNIQUE, number bigint UNIQUE, n integer);

-- A trigger that sets the key: for rows without one, over whatever way they came.
CREATE FUNCTION set_keys() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.id := coalesce(NEW.id, idgen_snowflake());
    NEW.uid := coalesce(NEW.uid, idgen_uuidv7());
    NEW.number := coalesce(NEW.number, idgen_segment('code'));
    RETURN NEW;
END $$;
CREATE TRIGGER set_keys BEFORE INSERT ON made FOR EACH ROW EXECUTE FUNCTION set_keys();
INSERT INTO made (n) SELECT generate_series(1, 2000);
COPY made (n) FROM stdin;
2001
2002
\.
INSERT INTO made (id, n) VALUES (1, 0) RETURNING id, uid IS NOT NULL AS uid;
SELECT count(*), count(DISTINCT id), count(DISTINCT uid), count(DISTINCT number) FROM made;

-- A function that catches an error keeps what it has drawn: the ids of the inner block are lost, none comes twice.
CREATE FUNCTION draw_and_fail(OUT inner_id bigint, OUT inner_uid uuid, OUT inner_number bigint, OUT outer_id bigint, OUT outer_uid uuid, OUT outer_number bigint)
LANGUAGE plpgsql AS $$
BEGIN
    BEGIN
        inner_id := idgen_snowflake(); inner_uid := idgen_uuidv7(); inner_number := idgen_segment('code');
        INSERT INTO made VALUES (inner_id, inner_uid, inner_number);
        RAISE EXCEPTION 'undone';
    EXCEPTION WHEN raise_exception THEN NULL;
    END;
    outer_id := idgen_snowflake(); outer_uid := idgen_uuidv7(); outer_number := idgen_segment('code');
    INSERT INTO made VALUES (outer_id, outer_uid, outer_number);
END $$;
SELECT inner_id < outer_id AS id, inner_uid < outer_uid AS uid, inner_number < outer_number AS number FROM draw_and_fail();
-- Errors of ours are caught by their class and leave the block usable.
DO $$
DECLARE state text;
BEGIN
    BEGIN
        PERFORM idgen_segment('no such tag');
    EXCEPTION WHEN SQLSTATE 'IG005' THEN
        GET STACKED DIAGNOSTICS state = RETURNED_SQLSTATE;
        RAISE NOTICE 'caught %, and the next number is there: %', state, idgen_segment('code') > 0;
    END;
END $$;

-- A procedure that commits between its rows.
CREATE PROCEDURE fill(rows integer) LANGUAGE plpgsql AS $$
BEGIN
    FOR i IN 1..rows LOOP
        INSERT INTO made (n) VALUES (-1);
        IF i % 3 = 0 THEN ROLLBACK; ELSE COMMIT; END IF;
    END LOOP;
END $$;
CALL fill(30);
SELECT count(*) AS kept FROM made WHERE n = -1;

-- Cursors draw as they are fetched.
BEGIN;
DECLARE forward NO SCROLL CURSOR FOR SELECT idgen_snowflake() AS id, idgen_segment('code') AS number FROM generate_series(1, 1000);
FETCH 1 FROM forward \gset a_
MOVE 10 FROM forward;
FETCH 1 FROM forward \gset b_
SELECT :b_number - :a_number AS drawn_only_as_fetched, :a_id < :b_id AS rises;
CLOSE forward;
SELECT idgen_segment('code') - :b_number AS next_one;
-- Postgres evaluates a row again when a cursor goes back to it, and every row again when it is held over a commit.
DECLARE back SCROLL CURSOR FOR SELECT idgen_snowflake() AS id FROM generate_series(1, 3);
FETCH NEXT FROM back \gset first_
FETCH NEXT FROM back \gset second_
FETCH PRIOR FROM back \gset again_
SELECT :first_id < :second_id AND :second_id < :again_id AS drawn_again;
CLOSE back;
-- Where a row must keep its id, it has to be stored: in a table, or in a materialized query.
DECLARE held SCROLL CURSOR WITH HOLD FOR
    WITH made AS MATERIALIZED (SELECT idgen_snowflake() AS id, idgen_uuidv7() AS uid FROM generate_series(1, 5)) SELECT * FROM made;
FETCH NEXT FROM held \gset one_
COMMIT;
FETCH NEXT FROM held \gset two_
FETCH ABSOLUTE 1 FROM held \gset back_
SELECT :one_id < :two_id AS rises, :one_id = :back_id AND :'one_uid'::uuid = :'back_uid'::uuid AS kept_over_commit;
CLOSE held;

-- A view with INSTEAD OF, a rule, an updatable view with a default of its own.
CREATE VIEW made_view AS SELECT id, n FROM made;
CREATE FUNCTION insert_into_made() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.id := idgen_snowflake();
    INSERT INTO made (id, n) VALUES (NEW.id, NEW.n);
    RETURN NEW;
END $$;
CREATE TRIGGER instead INSTEAD OF INSERT ON made_view FOR EACH ROW EXECUTE FUNCTION insert_into_made();
INSERT INTO made_view (n) VALUES (-2), (-2) RETURNING id IN (SELECT id FROM made) AS not_yet_visible;
SELECT count(*) FROM made WHERE n = -2;
CREATE VIEW simple_view AS SELECT id, n FROM made;
ALTER VIEW simple_view ALTER COLUMN id SET DEFAULT idgen_snowflake();
INSERT INTO simple_view (n) VALUES (-3) RETURNING id > 0 AS id;
-- A rule repeats the expression, not its value: each of the two rows has an id of its own. So it is with nextval().
CREATE TABLE logged (id bigint PRIMARY KEY, n integer);
CREATE TABLE origin (id bigint DEFAULT idgen_snowflake(), n integer);
CREATE RULE also AS ON INSERT TO origin DO ALSO INSERT INTO logged VALUES (NEW.id, NEW.n);
INSERT INTO origin (n) VALUES (1);
SELECT (SELECT id FROM origin) < (SELECT id FROM logged) AS another_id;
-- A materialized view draws anew at every refresh.
CREATE MATERIALIZED VIEW drawn AS SELECT idgen_snowflake() AS id FROM generate_series(1, 10);
SELECT max(id) AS before FROM drawn \gset
REFRESH MATERIALIZED VIEW drawn;
SELECT min(id) > :before AS anew FROM drawn;
DROP MATERIALIZED VIEW drawn;
DROP VIEW made_view, simple_view;
DROP TABLE logged, origin;

-- Two-phase commit: the ids are in the prepared transaction; others do not get them, whatever becomes of it.
BEGIN;
INSERT INTO made (n) VALUES (-4) RETURNING id AS prepared_id, number AS prepared_number \gset
PREPARE TRANSACTION 'idgen code';
INSERT INTO made (n) VALUES (-5) RETURNING id > :prepared_id AS id, number > :prepared_number AS number;
COMMIT PREPARED 'idgen code';
SELECT count(*) FROM made WHERE n = -4 AND id = :prepared_id;
BEGIN;
INSERT INTO made (n) VALUES (-6) RETURNING id AS lost_id, number AS lost_number \gset
PREPARE TRANSACTION 'idgen code';
ROLLBACK PREPARED 'idgen code';
INSERT INTO made (n) VALUES (-7) RETURNING id > :lost_id AS id, number > :lost_number AS number;

-- A deferred constraint that fails at commit, and a chain of transactions.
DELETE FROM made;
ALTER TABLE made ADD CONSTRAINT once UNIQUE (n) DEFERRABLE INITIALLY DEFERRED;
BEGIN;
INSERT INTO made (n) VALUES (1), (1);
\set VERBOSITY sqlstate
COMMIT;
\set VERBOSITY default
BEGIN;
INSERT INTO made (n) VALUES (2);
COMMIT AND CHAIN;
INSERT INTO made (n) VALUES (3);
ROLLBACK AND CHAIN;
INSERT INTO made (n) VALUES (4);
COMMIT;
SELECT array_agg(n ORDER BY id) AS in_order, bool_and(number > 0) AS numbered FROM made;

-- A function in SQL, one that is set returning, an aggregate of them, a recursive query, a lateral join.
CREATE FUNCTION new_id() RETURNS bigint LANGUAGE sql VOLATILE AS 'SELECT idgen_snowflake()';
CREATE FUNCTION new_ids(n integer) RETURNS SETOF bigint LANGUAGE sql VOLATILE AS 'SELECT idgen_snowflake_batch(n)';
SELECT new_id() < new_id() AS rises, (SELECT count(DISTINCT i) FROM new_ids(100) i), (SELECT count(DISTINCT new_id()) FROM generate_series(1, 100)) AS inlined;
WITH RECURSIVE r AS (SELECT 1 AS n, idgen_snowflake() AS id UNION ALL SELECT n + 1, idgen_snowflake() FROM r WHERE n < 50) SELECT count(DISTINCT id) FROM r;
SELECT count(DISTINCT id) FROM generate_series(1, 50) n CROSS JOIN LATERAL (SELECT idgen_snowflake() AS id WHERE n > 0) s;
-- Evaluated once where SQL evaluates once: an uncorrelated sub-select gives all rows the one id.
SELECT count(DISTINCT (SELECT idgen_snowflake())) AS one_for_all FROM generate_series(1, 50);
SELECT count(*) AS short_circuit FROM generate_series(1, 3) WHERE false AND idgen_segment('no such tag') > 0;
DROP FUNCTION new_id(), new_ids(integer), draw_and_fail(), set_keys() CASCADE;
DROP FUNCTION insert_into_made();
DROP PROCEDURE fill(integer);
DROP TABLE made;
