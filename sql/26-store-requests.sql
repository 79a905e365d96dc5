-- The embedded lease store: what needs two people. Requests are written by idgenctl with the rights of a daemon; an approval
-- only by idgen.approve(), for whoever the server has authenticated. Never dumped.

CREATE TABLE idgen.request (
    request_id uuid        PRIMARY KEY,
    ask        text        NOT NULL,
    asked_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    asked_by   name        NOT NULL DEFAULT session_user,
    expires_at timestamptz NOT NULL,
    done_at    timestamptz,
    outcome    text,
    CHECK ((done_at IS NULL) = (outcome IS NULL))
);
COMMENT ON TABLE idgen.request IS 'Embedded lease store: requests that people have to approve, such as taking a worker from its holder by force. Each is used once. Never dumped.';
COMMENT ON COLUMN idgen.request.request_id IS 'Its name.';
COMMENT ON COLUMN idgen.request.ask IS 'All of what is asked, as JSON; an approval is for exactly this text.';
COMMENT ON COLUMN idgen.request.asked_at IS 'When, by the clock of this database.';
COMMENT ON COLUMN idgen.request.asked_by IS 'session_user of whoever wrote it: the role of a daemon. Who asked is in the text.';
COMMENT ON COLUMN idgen.request.expires_at IS 'Until when it may be approved and done.';
COMMENT ON COLUMN idgen.request.done_at IS 'When it was used; NULL: it was not.';
COMMENT ON COLUMN idgen.request.outcome IS 'What came of it.';

CREATE TABLE idgen.approver (
    role      name        PRIMARY KEY,
    role_oid  oid         NOT NULL,
    made_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    made_by   name        NOT NULL DEFAULT session_user
);
COMMENT ON TABLE idgen.approver IS 'Embedded lease store: the roles that may approve requests, each a person with a login of its own. Written by idgen.grant_approver() and idgen.revoke_approver(). Never dumped.';
COMMENT ON COLUMN idgen.approver.role IS 'Name of the role.';
COMMENT ON COLUMN idgen.approver.role_oid IS 'Its oid: a role that is dropped and made anew is another one.';
COMMENT ON COLUMN idgen.approver.made_at IS 'Since when.';
COMMENT ON COLUMN idgen.approver.made_by IS 'session_user of whoever said so.';

CREATE TABLE idgen.approval (
    request_id  uuid        NOT NULL REFERENCES idgen.request,
    approver    name        NOT NULL,
    ask_sha256  bytea       NOT NULL,
    approved_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (request_id, approver)
);
COMMENT ON TABLE idgen.approval IS 'Embedded lease store: who has approved which request. Written by idgen.approve() only. Never dumped.';
COMMENT ON COLUMN idgen.approval.request_id IS 'The request.';
COMMENT ON COLUMN idgen.approval.approver IS 'session_user: whom the server has authenticated, whatever SET ROLE says.';
COMMENT ON COLUMN idgen.approval.ask_sha256 IS 'SHA-256 of the text that was approved.';
COMMENT ON COLUMN idgen.approval.approved_at IS 'When, by the clock of this database.';

CREATE TRIGGER store_stays BEFORE DELETE OR TRUNCATE ON idgen.request
FOR EACH STATEMENT EXECUTE FUNCTION idgen.store_stays();
COMMENT ON TRIGGER store_stays ON idgen.request IS 'See idgen.store_stays().';
CREATE TRIGGER store_stays BEFORE DELETE OR TRUNCATE ON idgen.approval
FOR EACH STATEMENT EXECUTE FUNCTION idgen.store_stays();
COMMENT ON TRIGGER store_stays ON idgen.approval IS 'See idgen.store_stays().';

CREATE FUNCTION idgen.approve(request_id uuid, ask_sha256 bytea)
RETURNS name
LANGUAGE plpgsql VOLATILE STRICT PARALLEL UNSAFE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    asked idgen.request;
    why text;
BEGIN
    -- In here current_user is the owner; and SET ROLE changes current_user, never session_user.
    SELECT * INTO asked FROM idgen.request r WHERE r.request_id = approve.request_id FOR UPDATE;
    why := CASE
        WHEN NOT EXISTS (SELECT FROM idgen.approver a JOIN pg_roles p ON p.oid = a.role_oid AND p.rolname = a.role
                          WHERE a.role = session_user AND NOT p.rolsuper)
            -- A superuser may be whoever it likes (SET SESSION AUTHORIZATION), so it is nobody in particular.
            THEN format('%s is no approver, or a superuser.', session_user)
        WHEN asked.request_id IS NULL THEN 'There is no such request.'
        WHEN asked.done_at IS NOT NULL THEN format('It was used at %s.', asked.done_at)
        WHEN asked.expires_at <= clock_timestamp() THEN format('It expired at %s.', asked.expires_at)
        WHEN sha256(convert_to(asked.ask, 'UTF8')) <> ask_sha256 THEN 'Its text is not the one that is approved.'
    END;
    IF why IS NOT NULL THEN
        RAISE EXCEPTION 'the approval is refused'
            USING ERRCODE = 'IG041', DETAIL = why,
                  HINT = 'idgenctl approvals list shows the requests; SELECT idgen.grant_approver(''ROLE'') makes an approver.';
    END IF;
    INSERT INTO idgen.approval (request_id, approver, ask_sha256)
    VALUES (approve.request_id, session_user, approve.ask_sha256)
    -- One that was given for an older text is for nothing any more.
    ON CONFLICT ON CONSTRAINT approval_pkey
        DO UPDATE SET ask_sha256 = excluded.ask_sha256, approved_at = excluded.approved_at;
    RETURN session_user;
END
$$;
COMMENT ON FUNCTION idgen.approve(uuid, bytea) IS
'Approve a request as session_user, the role that has logged in; SET ROLE changes nothing. Called by idgenctl approvals approve, which shows what will happen before. Done twice by one role it is one approval. Returns the role. Errors: IG041 not an approver, or no such request, or one that was used, has expired or has another text, 25006 on a standby.';
REVOKE ALL ON FUNCTION idgen.approve(uuid, bytea) FROM PUBLIC;

CREATE FUNCTION idgen.grant_approver(role name)
RETURNS void
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    EXECUTE format('GRANT EXECUTE ON FUNCTION idgen.approve(uuid, bytea) TO %I', role);
    INSERT INTO idgen.approver AS a (role, role_oid) VALUES (grant_approver.role, to_regrole(quote_ident(grant_approver.role)))
    ON CONFLICT ON CONSTRAINT approver_pkey DO UPDATE SET role_oid = excluded.role_oid;
END
$$;
COMMENT ON FUNCTION idgen.grant_approver(name) IS
'Let a role approve requests: one per person, with a login of its own. From the second one on, two people have to approve an advance of the epoch, unless the cell says otherwise. Only for the owner of the extension. Errors: 42704 no such role, 42501 not the owner.';
REVOKE ALL ON FUNCTION idgen.grant_approver(name) FROM PUBLIC;

CREATE FUNCTION idgen.revoke_approver(role name)
RETURNS void
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    DELETE FROM idgen.approver a WHERE a.role = revoke_approver.role;
    IF to_regrole(quote_ident(role)) IS NOT NULL THEN
        EXECUTE format('REVOKE EXECUTE ON FUNCTION idgen.approve(uuid, bytea) FROM %I', role);
    END IF;
END
$$;
COMMENT ON FUNCTION idgen.revoke_approver(name) IS
'The role approves nothing more. What it has approved stays approved. Only for the owner of the extension. Errors: 42501 not the owner.';
REVOKE ALL ON FUNCTION idgen.revoke_approver(name) FROM PUBLIC;
