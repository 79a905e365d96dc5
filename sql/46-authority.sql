-- Who may grant ranges: the daemon carries leases and ceilings from the lease store (idgen.authority = leased).

CREATE FUNCTION idgen.authority_wanted(
    OUT space_id uuid, OUT stripe integer, OUT stripes integer, OUT stripe_size bigint, OUT tag text, OUT segment_id uuid,
    OUT max_id bigint, OUT ceiling bigint, OUT wanted bigint)
RETURNS SETOF record
LANGUAGE c VOLATILE STRICT PARALLEL UNSAFE ROWS 10
AS 'MODULE_PATHNAME', 'idgen_authority_wanted';
COMMENT ON FUNCTION idgen.authority_wanted() IS
'Daemon: what to lease and to raise for this database. One row without a tag names the space and the stripe to lease, and how the space is cut (stripes 1: not at all); one row more for every tag in use whose ceiling should be raised: max_id is what the table has granted, ceiling what may be granted here now (0: nothing), wanted what to raise it to. No rows: idgen.authority is local, or this is a standby, or a clone that is not another space yet. The call counts as a sign of life of the daemon. Error: IG011 not preloaded.';

CREATE FUNCTION idgen.install_authority(
    boot_id uuid, space_id uuid, stripe integer, token_epoch bigint, token_revision bigint, deadline_boot_ms bigint)
RETURNS boolean
LANGUAGE c VOLATILE STRICT PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'idgen_install_authority';
COMMENT ON FUNCTION idgen.install_authority(uuid, uuid, integer, bigint, bigint, bigint) IS
'Daemon: the lease of this database''s space and stripe: ranges may be granted until deadline_boot_ms (CLOCK_BOOTTIME of this server, ms), up to the ceilings that raise_ceiling() tells under the same token. The token is (epoch, revision), compared in that order. A newer token makes older ceilings void; the same one again moves the deadline, never back. Returns true when it was opened, false when this token was open. Errors: IG101 another boot id, IG102 token not newer, or fenced, IG104 deadline passed, IG108 not the space or stripe of this database, IG011 not preloaded, IG012 in recovery, IG017 too many databases, 22023 bad argument.';

CREATE FUNCTION idgen.raise_ceiling(
    space_id uuid, stripe integer, token_epoch bigint, token_revision bigint, tag text, floor bigint, ceiling bigint)
RETURNS boolean
LANGUAGE c VOLATILE STRICT PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'idgen_raise_ceiling';
COMMENT ON FUNCTION idgen.raise_ceiling(uuid, integer, bigint, bigint, text, bigint, bigint) IS
'Daemon: ids of the tag above floor and up to ceiling (inclusive) may be granted here under this token. floor: the ceiling that the lease store had before this token first raised it (0: none); later calls move the ceiling, only up, and leave the floor. To be called after the store has committed the ceiling. Returns false when that token is not the open one. Errors: IG005 unknown tag, IG011 not preloaded, IG017 too many tags, 22023 bad argument.';

CREATE FUNCTION idgen.fence_authority(space_id uuid, stripe integer)
RETURNS boolean
LANGUAGE c VOLATILE STRICT PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'idgen_fence_authority';
COMMENT ON FUNCTION idgen.fence_authority(uuid, integer) IS
'Daemon: close the lease of this database''s space now; nothing is granted before a newer token is installed. Ranges that were granted before are used up: they lie below the ceiling in the store. Returns false when there is none of that space and stripe. Errors: IG011 not preloaded, 22023 bad argument.';

REVOKE ALL ON FUNCTION
    idgen.authority_wanted(),
    idgen.install_authority(uuid, uuid, integer, bigint, bigint, bigint),
    idgen.raise_ceiling(uuid, integer, bigint, bigint, text, bigint, bigint),
    idgen.fence_authority(uuid, integer)
FROM PUBLIC;

-- What an administrator says of this database.

CREATE FUNCTION idgen.adopt_authority(reason text)
RETURNS void
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'idgen_adopt_authority';
COMMENT ON FUNCTION idgen.adopt_authority(text) IS
'This database is the one that grants ranges from now on, here: for a copy or a moved data directory that refuses with IG031. The other one must be gone for good. Every tag passes over its safety burn before it serves again; reason is recorded in an event authority.adopt. Errors: IG012 in recovery, IG007 no day tables, 22004 NULL, 22023 no reason.';

CREATE FUNCTION idgen.promote(reason text)
RETURNS void
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'idgen_promote';
COMMENT ON FUNCTION idgen.promote(text) IS
'This logical replica is the master from now on: as idgen.adopt_authority(). Before: end the subscription, fence the old master, and see that idgen.segment was replicated too. Recorded in an event authority.promote. Errors: as idgen.adopt_authority().';

CREATE FUNCTION idgen.set_safety_burn(tag text, ids bigint)
RETURNS void
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'idgen_set_safety_burn';
COMMENT ON FUNCTION idgen.set_safety_burn(text, bigint) IS
'How many ids a tag passes over when ranges may have been granted that this database does not know of; NULL: what it would have granted in idgen.safety_burn_time at its measured rate, and two ranges of max_step. Only for the tag''s owner. Errors: IG005 unknown tag, IG013 not the owner, IG012 in recovery, 22023 negative, 22004 NULL.';

REVOKE ALL ON FUNCTION idgen.server_home(), idgen.adopt_authority(text), idgen.promote(text) FROM PUBLIC;
