-- Several masters of one space: each grants the ids of its own stripes.

CREATE FUNCTION idgen.stripe_place(id bigint, stripe integer, stripes integer, stripe_size bigint)
RETURNS bigint
LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE
AS 'MODULE_PATHNAME', 'idgen_stripe_place';
COMMENT ON FUNCTION idgen.stripe_place(bigint, integer, integer, bigint) IS
'How many of the ids up to id belong to master stripe (from 0) of stripes, in stripes of stripe_size ids; with one master (whatever stripe_size is) all of them. NULL: there is no such master.';

CREATE FUNCTION idgen.join_space(space_id uuid, stripe integer, stripes integer, stripe_size bigint, above bigint DEFAULT 0)
RETURNS void
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'idgen_join_space';
COMMENT ON FUNCTION idgen.join_space(uuid, integer, integer, bigint, bigint) IS
'This database is master stripe (from 0) of stripes (2 to 64) of the space from now on: of each tag it grants the ids above above that lie in its stripes of stripe_size ids (10,000 to 1,000,000,000,000). For idgenctl stripes join, which looks first whether the lease store has given that index to this database: called by hand, nothing checks that no other database has the same one, and ids are issued twice. above: ids up to it were granted before the space was cut; refused if this database has granted more, and in a space that it has not made itself, if it has granted anything. Done again, it takes in tags that came since from another database. Waits for transactions that change tags, and is the first thing in its transaction. Events: space.join, segment.join for each tag. Errors: IG036 it cannot join, with the reason, IG007 no day tables, IG012 in recovery, 22023 an argument out of range, 22004 NULL.';

CREATE FUNCTION idgen.leave_space(reason text)
RETURNS void
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'idgen_leave_space';
COMMENT ON FUNCTION idgen.leave_space(text) IS
'This database is a space of its own again: another one (space_id), of one master. Its tags go on above what they have granted, with every id, so with ids that other masters of the old space have or will have: keep their rows apart. For idgenctl stripes leave, which gives the index back; also for a restored dump of a master. Waits for transactions that change tags, and is the first thing in its transaction. Events: space.leave with the reason, segment.leave for each tag. Errors: IG036 it is one already, IG007 no day tables, IG012 in recovery, 22023 no reason, 22004 NULL.';

REVOKE ALL ON FUNCTION idgen.join_space(uuid, integer, integer, bigint, bigint), idgen.leave_space(text) FROM PUBLIC;
