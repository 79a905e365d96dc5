-- PostgreSQL 18's names for UUIDs on the majors before it.

CREATE FUNCTION idgen_uuidv7_shifted(shift interval)
RETURNS uuid
LANGUAGE c VOLATILE STRICT PARALLEL SAFE
AS 'MODULE_PATHNAME', 'idgen_uuidv7_shifted';
COMMENT ON FUNCTION idgen_uuidv7_shifted(interval) IS
'The next idgen_uuidv7() with its time moved by the interval, as uuidv7(interval) of PostgreSQL 18. With one and the same interval they rise strictly within a backend process. Days and months follow the session''s time zone. Error: 22008 a time before 1970 or after the year 10889.';

CREATE FUNCTION idgen.uuid_timestamp(id uuid)
RETURNS timestamptz
LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE
AS 'MODULE_PATHNAME', 'idgen_uuid_timestamp';
COMMENT ON FUNCTION idgen.uuid_timestamp(uuid) IS
'The time of a UUID version 1 (microseconds) or 7 (ms), as uuid_extract_timestamp() of PostgreSQL 18; NULL for any other.';

CREATE FUNCTION idgen.uuid_version(id uuid)
RETURNS smallint
LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE
AS 'MODULE_PATHNAME', 'idgen_uuid_version';
COMMENT ON FUNCTION idgen.uuid_version(uuid) IS
'The version of a UUID, as uuid_extract_version() of PostgreSQL 18; NULL for a variant other than RFC 9562''s.';

-- Bodies are bound when the functions are made (RETURN, no text), so no search_path can bend them later, and the
-- planner puts what they call in their place.
CREATE FUNCTION idgen.create_pg18_names(schema name)
RETURNS SETOF regprocedure
LANGUAGE plpgsql VOLATILE STRICT PARALLEL UNSAFE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    home name := (SELECT n.nspname FROM pg_extension e JOIN pg_namespace n ON n.oid = e.extnamespace WHERE e.extname = 'pg_idgen');
    wanted record;
    made integer := 0;
BEGIN
    FOR wanted IN
        SELECT * FROM (VALUES
            ('uuidv7()', 'RETURNS uuid LANGUAGE sql VOLATILE PARALLEL SAFE RETURN %1$I.idgen_uuidv7()'),
            ('uuidv7(shift interval)', 'RETURNS uuid LANGUAGE sql VOLATILE STRICT PARALLEL SAFE RETURN %1$I.idgen_uuidv7_shifted(shift)'),
            ('uuid_extract_timestamp(uuid)', 'RETURNS timestamptz LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE RETURN idgen.uuid_timestamp($1)'),
            ('uuid_extract_version(uuid)', 'RETURNS smallint LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE RETURN idgen.uuid_version($1)')
        ) v (declaration, definition)
    LOOP
        -- A type has one word in this list; a name before it is the parameter's.
        CONTINUE WHEN to_regprocedure('pg_catalog.' || replace(wanted.declaration, 'shift ', '')) IS NOT NULL;
        EXECUTE format('CREATE FUNCTION %I.%s ', schema, wanted.declaration) || format(wanted.definition, home);
        EXECUTE format('COMMENT ON FUNCTION %I.%s IS ''As in PostgreSQL 18; made by idgen.create_pg18_names().''', schema, wanted.declaration);
        made := made + 1;
        RETURN NEXT to_regprocedure(format('%I.%s', schema, replace(wanted.declaration, 'shift ', '')));
    END LOOP;
    IF made = 0 THEN
        RAISE NOTICE 'this server has all of these names itself: nothing was made';
    END IF;
END
$$;
COMMENT ON FUNCTION idgen.create_pg18_names(name) IS
'Make those of uuidv7(), uuidv7(interval), uuid_extract_timestamp(uuid) and uuid_extract_version(uuid) that this major of PostgreSQL does not have, as plain functions of the caller in the given schema; gives what was made. On 17 the two extract functions are the server''s own, on 18 all are. Errors: 3F000 no such schema, 42501 no right to create there, 42723 a function of that name is there.';
