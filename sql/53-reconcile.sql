-- What a failover has lost is known elsewhere: the ids of it are never granted again.

CREATE FUNCTION idgen.pass_over(of_space uuid, of_tag text, up_to bigint)
RETURNS bigint
LANGUAGE plpgsql VOLATILE STRICT PARALLEL UNSAFE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    there record;
    next_id bigint;
BEGIN
    SELECT s.max_id, s.limit_id INTO there
      FROM idgen.segment s CROSS JOIN idgen.space p
     WHERE s.tag = of_tag AND s.dropped_at IS NULL AND p.space_id = of_space;
    IF NOT FOUND OR there.max_id >= up_to OR there.max_id >= there.limit_id THEN
        RETURN NULL;
    END IF;
    next_id := CASE WHEN up_to >= there.limit_id THEN there.limit_id ELSE up_to + 1 END;
    EXECUTE format('SELECT %I.idgen_seek_segment($1, $2, true)',
                   (SELECT n.nspname FROM pg_extension e JOIN pg_namespace n ON n.oid = e.extnamespace WHERE e.extname = 'pg_idgen'))
      USING of_tag, next_id;
    RETURN next_id;
END
$$;
COMMENT ON FUNCTION idgen.pass_over(uuid, text, bigint) IS
'Daemon: events of this space say that ids of the tag up to up_to were granted, which this database does not know of: let the tag go on above them, or at its last id where that is lower. Returns the first id that may be granted now; NULL: nothing was to be done, because the tag has passed them already, is not there, or is of another space. Event: segment.seek. Errors: IG012 in recovery, and those of idgen_seek_segment().';

CREATE FUNCTION idgen.witness_wanted(wait_s integer)
RETURNS uuid
LANGUAGE c VOLATILE STRICT PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'idgen_witness_wanted';
COMMENT ON FUNCTION idgen.witness_wanted(integer) IS
'Daemon: the mark (idgen.authority) of a history that began with a promotion or recovery, if topic and archive have to be asked which grants of the old one are lost: then idgen.pass_over() for each tag, and idgen.witnessed(). NULL: there is nothing to ask, or not yet, or this is a standby. wait_s, 0 to 86,400: so long tags are to wait for that after the next promotion (idgen.authority.witness_wait). Errors: IG011 not preloaded, 22023 bad argument.';

CREATE FUNCTION idgen.witnessed(of_mark uuid)
RETURNS boolean
LANGUAGE sql VOLATILE STRICT PARALLEL UNSAFE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
    UPDATE idgen.authority SET is_witnessed = true WHERE mark = of_mark AND NOT is_witnessed RETURNING true
$$;
COMMENT ON FUNCTION idgen.witnessed(uuid) IS
'Daemon, and administrators who will not wait for it: what others know of the history before this mark (idgen.authority) was told, and tags serve again. Returns true; NULL: that was said before, or the mark is another one by now.';

REVOKE ALL ON FUNCTION
    idgen.pass_over(uuid, text, bigint),
    idgen.witness_wanted(integer),
    idgen.witnessed(uuid)
FROM PUBLIC;
