-- Who may do what with a tag: its owner, members of that role, administrators, and roles that it was lent to.
\set ECHO none
\getenv dir PG_ABS_SRCDIR
\set file :dir '/include/refusal.sql'
\i :file
\set ECHO all
CREATE ROLE idgen_o; CREATE ROLE idgen_m IN ROLE idgen_o; CREATE ROLE idgen_x; CREATE ROLE idgen_a; CREATE ROLE idgen_g IN ROLE idgen_x;
SELECT idgen.grant_admin('idgen_a');
SET ROLE idgen_o;
SELECT idgen_create_segment('t', step => 10, max_step => 10);
RESET ROLE;

-- A role without rights is refused everything, the owner's own schema or not.
CREATE TEMP TABLE call (nth integer, call text);
INSERT INTO call VALUES (1, 'idgen_segment(''t'')'), (2, 'idgen_segment_range(''t'', 1)'), (3, 'idgen_segment_range(''t'', 1, ''k'')'),
    (4, '* FROM idgen_segment_batch(''t'', 1)'), (5, 'idgen_alter_segment(''t'', step => 10)'), (6, 'idgen_seek_segment(''t'', 2000)'),
    (7, 'idgen_drop_segment(''t'')'), (8, 'idgen.grant_segment(''t'', ''public'')'), (9, 'idgen.revoke_segment(''t'', ''public'')'),
    (10, '* FROM idgen.segment'), (11, '* FROM idgen.segment_request'), (12, 'idgen.administer_segments()');
GRANT SELECT ON call TO PUBLIC;
SET ROLE idgen_x;
SELECT nth, pg_temp.refusal('SELECT ' || call) AS stranger FROM call ORDER BY nth;
SELECT count(*) AS visible FROM idgen.segments;
RESET ROLE;
-- Making tags is for everybody until that is taken away.
REVOKE EXECUTE ON FUNCTION idgen_create_segment(text, bigint, integer, integer, bigint, integer) FROM PUBLIC;
SET ROLE idgen_x;
SELECT pg_temp.refusal($$SELECT idgen_create_segment('x')$$);
RESET ROLE;
GRANT EXECUTE ON FUNCTION idgen_create_segment(text, bigint, integer, integer, bigint, integer) TO PUBLIC;

-- Who was lent the tag draws, and changes nothing.
SET ROLE idgen_o;
SELECT idgen.grant_segment('t', 'idgen_x'), idgen.grant_segment('t', 'idgen_x');
SET ROLE idgen_x;
SELECT nth, pg_temp.refusal('SELECT ' || call) AS lent FROM call WHERE nth < 10 ORDER BY nth;
RESET ROLE;
SET ROLE idgen_g;
SELECT pg_temp.refusal($$SELECT idgen_segment('t')$$) AS member_of_it;
RESET ROLE;
-- Taken back, it is over at once.
SET ROLE idgen_o;
SELECT idgen.revoke_segment('t', 'idgen_x'), idgen.revoke_segment('t', 'idgen_x');
SELECT idgen.revoke_segment('t', 'no such role');
SET ROLE idgen_x;
SELECT pg_temp.refusal($$SELECT idgen_segment('t')$$);
SET ROLE idgen_g;
SELECT pg_temp.refusal($$SELECT idgen_segment_range('t', 1)$$);
RESET ROLE;

-- Members of the owner's role may do what it may; administrators change and lend, and do not draw.
SET ROLE idgen_m;
SELECT nth, pg_temp.refusal('SELECT ' || call) AS member FROM call WHERE nth < 10 AND nth <> 7 ORDER BY nth;
SET ROLE idgen_a;
SELECT nth, pg_temp.refusal('SELECT ' || replace(call, '2000', '3000')) AS administrator FROM call WHERE nth <> 7 ORDER BY nth;
RESET ROLE;

-- A tag is handed over to a role that the caller is a member of.
SET ROLE idgen_m;
SELECT pg_temp.refusal($$SELECT idgen_alter_segment('t', owner => 'idgen_x')$$);
SELECT pg_temp.refusal($$SELECT idgen_alter_segment('t', owner => 'idgen_m')$$);
SET ROLE idgen_o;
SELECT pg_temp.refusal($$SELECT idgen_segment('t')$$);
RESET ROLE;
SELECT idgen_alter_segment('t', owner => 'idgen_o');
SELECT payload->'before'->>'owner' AS before, payload->'after'->>'owner' AS after FROM idgen.audit_event WHERE tag = 't' AND kind = 'segment.alter' ORDER BY tag_seq DESC LIMIT 2;

-- A role that is renamed keeps its tags and rights, and a new one of its old name has none.
SELECT idgen.grant_segment('t', 'idgen_x');
ALTER ROLE idgen_o RENAME TO idgen_p; ALTER ROLE idgen_x RENAME TO idgen_y;
CREATE ROLE idgen_o; CREATE ROLE idgen_x;
SET ROLE idgen_p;
SELECT pg_temp.refusal($$SELECT idgen_segment('t')$$), (SELECT owner FROM idgen.segments WHERE tag = 't');
SET ROLE idgen_y;
SELECT pg_temp.refusal($$SELECT idgen_segment('t')$$);
SET ROLE idgen_o;
SELECT pg_temp.refusal($$SELECT idgen_segment('t')$$), (SELECT count(*) FROM idgen.segments);
SET ROLE idgen_x;
SELECT pg_temp.refusal($$SELECT idgen_segment('t')$$);
RESET ROLE;
-- By its new name the right is taken back, and the old name can be given one of its own.
SET ROLE idgen_p;
SELECT idgen.grant_segment('t', 'idgen_x');
SELECT idgen.revoke_segment('t', 'idgen_y');
SET ROLE idgen_y;
SELECT pg_temp.refusal($$SELECT idgen_segment('t')$$);
SET ROLE idgen_x;
SELECT pg_temp.refusal($$SELECT idgen_segment('t')$$);
RESET ROLE;
-- A dropped role leaves its rights to nobody.
DROP ROLE idgen_x; CREATE ROLE idgen_x;
SET ROLE idgen_x;
SELECT pg_temp.refusal($$SELECT idgen_segment('t')$$);
RESET ROLE;
SELECT idgen.revoke_segment('t', 'idgen_x');
SELECT count(*) AS rights FROM idgen.segment_grant WHERE tag = 't' AND grantee <> 'public';
SELECT idgen_drop_segment('t');

-- Names of every length and kind can be altered, moved, lent, taken back and dropped.
SELECT idgen_create_segment(t, step => 1, max_step => 1), idgen_alter_segment(t, step => 2, max_step => 2), idgen_seek_segment(t, 10),
       idgen_segment(t), idgen_segment_range(t, 2), idgen.grant_segment(t, 'public'), idgen.revoke_segment(t, 'public'), idgen_drop_segment(t)
  FROM unnest(ARRAY['~', 'one "quoted" tag', 'that''s', 'R', 'r', 'Ünïcode ✓ 漢字', repeat('y', 200), repeat('漢', 66) || 'ab', '  ', E'tab\tand\nline', '$1', '%s', 'idgen.segment', '\']) t;
REVOKE EXECUTE ON FUNCTION idgen.administer_segments() FROM idgen_a;
DROP OWNED BY idgen_a;
DROP ROLE idgen_o, idgen_m, idgen_x, idgen_a, idgen_g, idgen_p, idgen_y;
