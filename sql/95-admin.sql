-- What administrators of ids may do beside the owner of the extension.

CREATE FUNCTION idgen.grant_admin(role name)
RETURNS void
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    EXECUTE format($grant$
        GRANT EXECUTE ON FUNCTION
            %2$I.idgen_register_prefix(text),
            idgen.seal_key_count(),
            idgen.register_format(text, timestamptz, integer, integer, integer, integer, integer, integer, boolean),
            idgen.reset_stats(),
            idgen.administer_segments(),
            idgen.adopt_authority(text),
            idgen.promote(text),
            idgen.join_space(uuid, integer, integer, bigint, bigint),
            idgen.leave_space(text),
            idgen.audit_close(bigint, text)
        TO %1$I;
    $grant$, role, (SELECT n.nspname FROM pg_extension e JOIN pg_namespace n ON n.oid = e.extnamespace WHERE e.extname = 'pg_idgen'));
END
$$;
COMMENT ON FUNCTION idgen.grant_admin(name) IS
'Give a role what administrators of ids need in this database: to register prefixes and formats, to count the keys of sealed ids, to reset idgen.stats, to alter, seek and drop everybody''s tags and give and take rights on them, to say that a copy or a logical replica is the database now, to join and leave a space of several masters, and to close findings of the audits. Only for the owner of the extension. Errors: 42704 no such role, 42501 not the owner.';
REVOKE ALL ON FUNCTION idgen.grant_admin(name) FROM PUBLIC;
