-- Fencing tokens: what a paused holder of a lock writes is refused here, by the database that it writes to.

CREATE TABLE idgen.fence_mark (
    resource       text COLLATE "C" PRIMARY KEY CHECK (octet_length(resource) BETWEEN 1 AND 200),
    token_epoch    bigint NOT NULL CHECK (token_epoch >= 0),
    token_revision bigint NOT NULL CHECK (token_revision > 0),
    raised_at      timestamptz NOT NULL,
    raised_by      name NOT NULL
)
WITH (fillfactor = 40);
COMMENT ON TABLE idgen.fence_mark IS 'The highest fencing token that each resource has seen: idgen.fence() refuses a lower one. In dumps: a restored database goes on refusing. A row may be deleted by the owner once nobody with an old token is left.';
COMMENT ON COLUMN idgen.fence_mark.resource IS 'What is protected; of a lock of idgenctl, its name (IDGEN_LOCK). 1 to 200 bytes.';
COMMENT ON COLUMN idgen.fence_mark.token_epoch IS 'The token: the epoch of the lease store it was granted in,';
COMMENT ON COLUMN idgen.fence_mark.token_revision IS '... and the store revision of the grant. Compared in this order.';
COMMENT ON COLUMN idgen.fence_mark.raised_at IS 'When this token was first seen, by this server''s clock.';
COMMENT ON COLUMN idgen.fence_mark.raised_by IS 'session_user of whoever brought it.';
SELECT pg_catalog.pg_extension_config_dump('idgen.fence_mark', '');

CREATE FUNCTION idgen.fence(resource text, token text)
RETURNS boolean
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    parts text[] := regexp_match(token, '^([0-9]{1,18})/([0-9]{1,18})$');
    epoch bigint := parts[1];
    revision bigint := parts[2];
    mark idgen.fence_mark;
BEGIN
    IF resource IS NULL OR token IS NULL THEN
        RAISE EXCEPTION '% must not be NULL', CASE WHEN resource IS NULL THEN 'resource' ELSE 'token' END
            USING ERRCODE = '22004';
    ELSIF octet_length(resource) NOT BETWEEN 1 AND 200 THEN
        RAISE EXCEPTION 'a resource has 1 to 200 bytes, not %', octet_length(resource)
            USING ERRCODE = '22023';
    ELSIF parts IS NULL OR revision = 0 THEN
        RAISE EXCEPTION 'not a fencing token: "%"', left(token, 60)
            USING ERRCODE = '22023',
                  HINT = 'A token is EPOCH/REVISION, as idgenctl lock run hands it to its command in IDGEN_LOCK_TOKEN.';
    END IF;
    LOOP
        UPDATE idgen.fence_mark f
           SET token_epoch = epoch, token_revision = revision, raised_at = clock_timestamp(), raised_by = session_user
         WHERE f.resource = fence.resource AND (f.token_epoch, f.token_revision) < (epoch, revision);
        IF FOUND THEN
            RETURN true;
        END IF;
        -- Locked to the end of the transaction: a newer holder cannot pass between this look and what is written after it.
        SELECT * INTO mark FROM idgen.fence_mark f WHERE f.resource = fence.resource FOR SHARE;
        IF (mark.token_epoch, mark.token_revision) > (epoch, revision) THEN
            RAISE EXCEPTION 'token % of "%" is stale', token, resource
                USING ERRCODE = 'IG040',
                      DETAIL = format('The resource has seen %s/%s, at %s.', mark.token_epoch, mark.token_revision, mark.raised_at),
                      HINT = 'Somebody else has held the lock since. Write nothing more under this token: end the work, and take the lock anew.';
        ELSIF (mark.token_epoch, mark.token_revision) = (epoch, revision) THEN
            RETURN false;
        END IF;
        INSERT INTO idgen.fence_mark VALUES (resource, epoch, revision, clock_timestamp(), session_user)
        ON CONFLICT DO NOTHING;
        IF FOUND THEN
            RETURN true;
        END IF;
    END LOOP;
END
$$;
COMMENT ON FUNCTION idgen.fence(text, text) IS
'Refuse what a stale holder of a lock writes: to be called first in every transaction that writes to the resource, with the token of the lock (EPOCH/REVISION, IDGEN_LOCK_TOKEN of idgenctl lock run). Raises the mark of the resource to the token and returns true, or false when it is there already. Until the end of the transaction a newer token waits, so that no write of an older one comes after it; a paused transaction is waited for until lock_timeout of the newer one, or idle_in_transaction_session_timeout of its own. Not for everybody: GRANT EXECUTE to the roles that write. Errors: IG040 the resource has seen a newer token, 22023 not a token, or a resource of 0 or more than 200 bytes, 22004 NULL, 25006 on a standby or in a read-only transaction, 40001 the mark was raised since the snapshot of a REPEATABLE READ transaction. Source: M. Kleppmann, How to do distributed locking (2016); Chubby''s sequencers (OSDI 2006).';
REVOKE ALL ON FUNCTION idgen.fence(text, text) FROM PUBLIC;
