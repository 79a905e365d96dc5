-- The embedded lease store, second part: named leases, their ceilings, and the stripes of spaces. As idgen.lease: read and
-- written by daemons and idgenctl only, under the lock of idgen.cell, never dumped.

CREATE TABLE idgen.named_lease (
    name           text COLLATE "C" PRIMARY KEY CHECK (octet_length(name) BETWEEN 1 AND 200),
    generation     bigint  NOT NULL CHECK (generation > 0),
    revision       bigint  NOT NULL,
    holder         uuid,
    holder_name    text,
    token_epoch    bigint,
    token_revision bigint,
    boot_id        uuid,
    expires_at     timestamptz,
    version        bigint  NOT NULL DEFAULT 0,
    CHECK ((holder IS NULL) = (token_revision IS NULL)
       AND (holder IS NULL) = (token_epoch IS NULL)
       AND (holder IS NULL) = (boot_id IS NULL)
       AND (holder IS NULL) = (expires_at IS NULL)
       AND (holder IS NULL) = (holder_name IS NULL))
)
WITH (fillfactor = 40);
COMMENT ON TABLE idgen.named_lease IS 'Embedded lease store: one row per name that was ever leased, such as authority/SPACE/STRIPE. One holder at a time. Rows are never deleted. Never dumped.';
COMMENT ON COLUMN idgen.named_lease.name IS 'Words of letters, digits, ".", "_" and "-", separated by slashes.';
COMMENT ON COLUMN idgen.named_lease.generation IS 'Counts the grants of this name.';
COMMENT ON COLUMN idgen.named_lease.revision IS 'Store revision of the last change of this row; guards every compare-and-swap.';
COMMENT ON COLUMN idgen.named_lease.holder IS 'Instance id of whoever holds it; NULL: nobody.';
COMMENT ON COLUMN idgen.named_lease.holder_name IS 'Name of that, for people.';
COMMENT ON COLUMN idgen.named_lease.token_epoch IS 'Fencing token of the grant: the epoch it was made in,';
COMMENT ON COLUMN idgen.named_lease.token_revision IS '... and the store revision it was made at. Kept over renewals.';
COMMENT ON COLUMN idgen.named_lease.boot_id IS 'The shared memory the token was granted for; it is never installed into another.';
COMMENT ON COLUMN idgen.named_lease.expires_at IS 'By this database''s clock. Only availability depends on it.';
COMMENT ON COLUMN idgen.named_lease.version IS 'Counts the changes of this row, whoever makes them.';

CREATE TABLE idgen.named_ceiling (
    name     text COLLATE "C" NOT NULL,
    key      text COLLATE "C" NOT NULL CHECK (octet_length(key) BETWEEN 1 AND 200),
    ceiling  bigint NOT NULL CHECK (ceiling > 0),
    revision bigint NOT NULL,
    PRIMARY KEY (name, key)
)
WITH (fillfactor = 40);
COMMENT ON TABLE idgen.named_ceiling IS 'Embedded lease store: how far the holder of a name may go, by key; of an authority, the highest id of each tag that may be granted. Raised only under the token of the holder, never lowered, never deleted: the next holder begins above. Never dumped.';
COMMENT ON COLUMN idgen.named_ceiling.name IS 'The lease that it is raised under.';
COMMENT ON COLUMN idgen.named_ceiling.key IS 'What it is the ceiling of; of an authority, the tag.';
COMMENT ON COLUMN idgen.named_ceiling.ceiling IS 'Nothing above it was granted under any token.';
COMMENT ON COLUMN idgen.named_ceiling.revision IS 'Store revision of its last change; guards the next one.';

CREATE TABLE idgen.stripe (
    space_id       uuid    NOT NULL,
    stripe         integer NOT NULL CHECK (stripe >= 0),
    stripes        integer NOT NULL CHECK (stripes BETWEEN 2 AND 64),
    server         bigint  NOT NULL,
    server_name    text    NOT NULL,
    database_name  text    NOT NULL,
    claimed_at     timestamptz NOT NULL,
    claimed_by     text    NOT NULL,
    stripe_size    bigint  NOT NULL CHECK (stripe_size > 0),
    above          bigint  NOT NULL CHECK (above >= 0),
    joined_at      timestamptz,
    released_at    timestamptz,
    release_reason text,
    revision       bigint  NOT NULL,
    PRIMARY KEY (space_id, stripe),
    CHECK (stripe < stripes),
    CHECK ((released_at IS NULL) = (release_reason IS NULL))
);
COMMENT ON TABLE idgen.stripe IS 'Embedded lease store: which database of which server has which stripe of a space, as idgenctl stripes has recorded it. Rows are never deleted. Never dumped.';
COMMENT ON COLUMN idgen.stripe.space_id IS 'The space: idgen.space.space_id of all of its servers.';
COMMENT ON COLUMN idgen.stripe.stripe IS 'The index: the server takes the stripes that are this modulo stripes.';
COMMENT ON COLUMN idgen.stripe.stripes IS 'In how many the space is cut; the same in all rows of a space.';
COMMENT ON COLUMN idgen.stripe.server IS 'System identifier of the server; its standbys have the same.';
COMMENT ON COLUMN idgen.stripe.server_name IS 'Name of its idgend, for people.';
COMMENT ON COLUMN idgen.stripe.database_name IS 'Its database that belongs to the space.';
COMMENT ON COLUMN idgen.stripe.claimed_at IS 'When, by the clock of this database.';
COMMENT ON COLUMN idgen.stripe.claimed_by IS 'Who claimed it.';
COMMENT ON COLUMN idgen.stripe.stripe_size IS 'Ids per stripe; the same in all rows of a space.';
COMMENT ON COLUMN idgen.stripe.above IS 'Ids up to it were granted before the space was cut; the same in all rows of a space.';
COMMENT ON COLUMN idgen.stripe.joined_at IS 'When a database began to grant under the index, last; NULL: none ever did.';
COMMENT ON COLUMN idgen.stripe.released_at IS 'Since when it is nobody''s; NULL: it is claimed.';
COMMENT ON COLUMN idgen.stripe.release_reason IS 'Why it was released, and by whom.';
COMMENT ON COLUMN idgen.stripe.revision IS 'Store revision of the last change of this row; guards the next one.';

CREATE TRIGGER store_stays BEFORE DELETE OR TRUNCATE ON idgen.named_lease
FOR EACH STATEMENT EXECUTE FUNCTION idgen.store_stays();
COMMENT ON TRIGGER store_stays ON idgen.named_lease IS 'See idgen.store_stays().';
CREATE TRIGGER store_stays BEFORE DELETE OR TRUNCATE ON idgen.named_ceiling
FOR EACH STATEMENT EXECUTE FUNCTION idgen.store_stays();
COMMENT ON TRIGGER store_stays ON idgen.named_ceiling IS 'See idgen.store_stays().';
CREATE TRIGGER store_stays BEFORE DELETE OR TRUNCATE ON idgen.stripe
FOR EACH STATEMENT EXECUTE FUNCTION idgen.store_stays();
COMMENT ON TRIGGER store_stays ON idgen.stripe IS 'See idgen.store_stays().';
