-- Segments: whose a tag is, and how it is changed and ended.

ALTER TABLE idgen.segment ADD COLUMN owner_oid oid, ADD COLUMN role_space uuid;
COMMENT ON COLUMN idgen.segment.owner IS 'Role that it belongs to; may use it, change it and give rights on it. Brought up to date when a refill worker starts: role_space says when the oid counts instead.';
COMMENT ON COLUMN idgen.segment.owner_oid IS 'The same role by its oid, so that the tag stays its own when it is renamed, and is not inherited by a new role of its old name.';
COMMENT ON COLUMN idgen.segment.role_space IS 'Tag space that owner_oid was written in. In another one (a restored database is one) the name counts, until a refill worker has written the oid of that name.';
COMMENT ON COLUMN idgen.segment.fetch_limit IS 'Most grants per minute by refill workers, ranges and bulk requests alike; above it callers get IG008. NULL: no limit.';
COMMENT ON COLUMN idgen.segment.dropped_at IS 'Not NULL: a tombstone, kept so that its ids never come back. idgen_create_segment() goes on above its max_id.';

ALTER TABLE idgen.segment_grant ADD COLUMN grantee_oid oid, ADD COLUMN role_space uuid;
COMMENT ON TABLE idgen.segment_grant IS 'Roles that may draw from a tag beside its owner; kept by idgen.grant_segment() and idgen.revoke_segment().';
COMMENT ON COLUMN idgen.segment_grant.grantee_oid IS 'The same role by its oid; NULL for public. As idgen.segment.owner_oid.';
COMMENT ON COLUMN idgen.segment_grant.role_space IS 'Tag space that grantee_oid was written in; as idgen.segment.role_space.';
COMMENT ON COLUMN idgen.segment_grant.granted_by IS 'Role that gave the right.';

CREATE OR REPLACE TRIGGER segment_changed
AFTER INSERT OR DELETE OR TRUNCATE OR UPDATE OF tag, segment_id, owner, owner_oid, role_space, dropped_at ON idgen.segment
FOR EACH STATEMENT EXECUTE FUNCTION idgen.segment_changed();

CREATE FUNCTION idgen.administer_segments()
RETURNS boolean
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE SET search_path = pg_catalog, pg_temp
AS $$ SELECT true $$;
COMMENT ON FUNCTION idgen.administer_segments() IS 'Whoever may execute this may alter, seek and drop everybody''s tags, and give and take rights on them; given by idgen.grant_admin(). Returns true.';
REVOKE ALL ON FUNCTION idgen.administer_segments() FROM PUBLIC;

COMMENT ON FUNCTION idgen_create_segment(text, bigint, integer, integer, bigint, integer) IS
'Make a segment tag; it belongs to the caller. tag: 1 to 200 bytes. start_id: first id, at least 1. step, max_step: least and most ids per database write, 1 to 1,000,000, step <= max_step. limit_id: last id, at least start_id. fetch_limit: most database writes per minute, NULL or 0 for no limit. A tag that was dropped begins above the ids that it had granted if start_id is not above them anyhow, and a NOTICE says so. Can be used at once in the same transaction, unless a tag of the name was dropped before. Event: segment.create. Errors: IG016 the tag exists, IG026 limit_id is not above what the dropped tag had granted, 22023 an argument out of range, 22004 NULL, IG012 in recovery; in a database that has no day tables for its events yet also IG011 not preloaded, IG007 no refill worker made them, IG017 too many tags.';

CREATE FUNCTION idgen_alter_segment(
    tag text, step integer DEFAULT NULL, max_step integer DEFAULT NULL, limit_id bigint DEFAULT NULL,
    fetch_limit integer DEFAULT NULL, owner text DEFAULT NULL)
RETURNS void
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'idgen_alter_segment';
COMMENT ON FUNCTION idgen_alter_segment(text, integer, integer, bigint, integer, text) IS
'Change a segment tag; NULL leaves a property as it is. step, max_step: least and most ids per database write, 1 to 1,000,000, step <= max_step; the next range has step ids, and adapts from there. limit_id: last id, at least what was granted. fetch_limit: most database writes per minute, 0 for no limit. owner: the role that it shall belong to, of which the caller is a member. Takes effect with the commit and the next range: ranges in memory are used up. For the owner of the tag and administrators. Waits for other transactions that change the tag; the transaction itself cannot draw from it any more. Event: segment.alter. Errors: IG005 unknown tag, IG013 not the owner, IG026 limit_id below what was granted, 22023 an argument out of range or no change, 22004 no tag, 42704 no such role, 42501 not a member of it, IG012 in recovery.';

CREATE FUNCTION idgen_seek_segment(tag text, next_id bigint, force boolean DEFAULT false)
RETURNS void
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'idgen_seek_segment';
COMMENT ON FUNCTION idgen_seek_segment(text, bigint, boolean) IS
'Let a segment tag go on at next_id, which is above everything that it has granted and at most limit_id: a tag only goes up. force: also when more than half of the ids that are left would be skipped. After a restore or a promotion the safety burn of the tag is passed over on top. Takes effect with the commit: no id below next_id is drawn in any session once it has returned, and ranges in memory are burned. For the owner of the tag and administrators. Waits for other transactions that change the tag; the transaction itself cannot draw from it any more. Event: segment.seek, with what is skipped. Errors: IG005 unknown tag, IG013 not the owner, IG026 granted already, above the limit, or far without force, 22004 NULL, IG012 in recovery.';

CREATE FUNCTION idgen_drop_segment(tag text)
RETURNS void
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'idgen_drop_segment';
COMMENT ON FUNCTION idgen_drop_segment(text) IS
'End a segment tag, its rights and its request keys. Takes effect with the commit: nobody draws from it once it has returned, and ranges in memory are burned. Its row stays, so that its ids never come back, not even if a tag of this name is made again. For the owner of the tag and administrators. Waits for other transactions that change the tag. Event: segment.drop. Errors: IG005 unknown tag, IG013 not the owner, 22004 NULL, IG012 in recovery.';

COMMENT ON FUNCTION idgen.grant_segment(text, text) IS
'Let a role (or public) draw from a tag; it keeps the right when it is renamed. For the owner of the tag and administrators. Errors: IG005 unknown tag, IG013 not the owner, 42704 no such role, 22004 NULL, IG012 in recovery.';

CREATE FUNCTION idgen.revoke_segment(tag text, grantee text)
RETURNS void
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'idgen_revoke_segment';
COMMENT ON FUNCTION idgen.revoke_segment(text, text) IS
'Take back what idgen.grant_segment() gave to a role (or public); nothing happens if it has no such right. Rights by ownership or by membership in another role stay. Sessions notice with their next statement after the commit. For the owner of the tag and administrators. Errors: IG005 unknown tag, IG013 not the owner, 42704 no such role, 22004 NULL, IG012 in recovery.';
