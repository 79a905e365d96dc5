-- What transactions, savepoints and changed rights must not do to segments.
-- Ids that were handed out under a savepoint do not come again, although the grant's row was taken back.
BEGIN;
SELECT idgen_create_segment('torn');
SAVEPOINT s;
SELECT idgen_segment('torn');
ROLLBACK TO s;
COMMIT;
SELECT idgen_segment('torn') > 1 AS not_again;
SELECT kind, lo, hi, payload->>'cause' AS cause FROM idgen.audit_event WHERE tag = 'torn' AND kind = 'segment.burn';
CREATE TABLE torn (id bigint PRIMARY KEY);
DO $$
DECLARE v bigint;
BEGIN
    PERFORM idgen_create_segment('torn too');
    BEGIN
        v := idgen_segment('torn too');
        RAISE EXCEPTION 'undone';
    EXCEPTION WHEN raise_exception THEN NULL;
    END;
    INSERT INTO torn VALUES (v);
END $$;
INSERT INTO torn VALUES (idgen_segment('torn too'));
SELECT count(*) FROM torn;
BEGIN;
SELECT idgen_create_segment('prepared');
SAVEPOINT s;
SELECT idgen_segment('prepared');
ROLLBACK TO s;
PREPARE TRANSACTION 'idgen';
COMMIT PREPARED 'idgen';
SELECT idgen_segment('prepared') > 1 AS not_again;
-- A tag that a savepoint took back never was, and can be made again.
BEGIN;
SAVEPOINT s;
SELECT idgen_create_segment('undone'), idgen_segment('undone');
ROLLBACK TO s;
SELECT idgen_create_segment('undone'), idgen_segment('undone');
COMMIT;
SELECT idgen_segment('undone') > 1 AS goes_on;

-- A row that the transaction has only changed is not its own: no private range that a rollback would return.
SELECT idgen_create_segment('changed');
SELECT array_agg(idgen_segment('changed')) FROM generate_series(1, 3);
BEGIN;
UPDATE idgen.segment SET owner = owner WHERE tag = 'changed';
SELECT idgen_segment('changed');
ROLLBACK;
SELECT count(DISTINCT id), min(id) FROM (SELECT idgen_segment('changed') AS id FROM generate_series(1, 3000)) s;
-- A right that is given away in an open transaction does not stop the tag, for nobody.
CREATE ROLE idgen_lent; CREATE ROLE idgen_team;
SELECT idgen_create_segment('lent too', step => 1, max_step => 1);
BEGIN;
SELECT idgen.grant_segment('lent too', 'idgen_lent');
SELECT array_agg(idgen_segment('lent too')) FROM generate_series(1, 5);
COMMIT;
-- A membership that is taken away takes the right along, in sessions that have used it too.
CREATE ROLE idgen_player IN ROLE idgen_team;
SELECT idgen.grant_segment('lent too', 'idgen_team');
SET ROLE idgen_player;
SELECT idgen_segment('lent too') > 0 AS as_member;
RESET ROLE;
REVOKE idgen_team FROM idgen_player;
SET ROLE idgen_player;
SELECT idgen_segment('lent too');
RESET ROLE;
-- Whose right it is counts for who calls, not for who is logged in.
CREATE FUNCTION idgen_mallory() RETURNS void LANGUAGE sql SECURITY DEFINER AS $$ SELECT idgen.grant_segment('changed', 'idgen_player') $$;
ALTER FUNCTION idgen_mallory() OWNER TO idgen_player;
SELECT idgen_mallory();
DROP FUNCTION idgen_mallory();
-- Nothing that a trigger defers runs with the owner's rights afterwards.
CREATE FUNCTION idgen_late() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE NOTICE 'late'; RETURN NULL; END $$;
CREATE CONSTRAINT TRIGGER late AFTER INSERT ON idgen.segment DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION idgen_late();
SELECT idgen_create_segment('late');
DROP TRIGGER late ON idgen.segment;
DROP FUNCTION idgen_late();

-- What this session has seen is forgotten with what it was of.
BEGIN;
SELECT idgen_create_segment('given up');
PREPARE TRANSACTION 'idgen';
ROLLBACK PREPARED 'idgen';
SELECT idgen_create_segment('next'), idgen_segment('next');
DROP EXTENSION pg_idgen;
CREATE EXTENSION pg_idgen;
SELECT idgen_create_segment('next'), idgen_segment('next') AS of_a_new_space;
-- A table of that name that is not the extension's is not touched.
DROP EXTENSION pg_idgen;
CREATE SCHEMA idgen;
CREATE TABLE idgen.segment (tag text);
CREATE FUNCTION idgen_foreign(text) RETURNS bigint LANGUAGE c AS '$libdir/pg_idgen', 'idgen_segment';
SELECT idgen_foreign('x');
DROP FUNCTION idgen_foreign(text);
DROP SCHEMA idgen CASCADE;
CREATE EXTENSION pg_idgen;
DROP ROLE idgen_lent, idgen_team, idgen_player;
DROP TABLE torn;
