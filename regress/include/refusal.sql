-- Included by tests whose point is a refusal. pg_temp.refusal(statement) runs it and says how it ended: SQLSTATE
-- and, for errors of this extension, the message; Postgres' own messages differ from major to major.
CREATE FUNCTION pg_temp.refusal(statement text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    state text; message text;
BEGIN
    EXECUTE statement;
    RETURN 'no error';
EXCEPTION WHEN OTHERS THEN
    GET STACKED DIAGNOSTICS state = RETURNED_SQLSTATE, message = MESSAGE_TEXT;
    RETURN CASE WHEN state LIKE 'IG%' OR message LIKE '%idgen%' THEN state || ' ' || message ELSE state END;
END $$;
