-- The embedded lease store: what operators have ordered of holders. Written by idgenctl leases revoke and force-release.
-- Never dumped.

CREATE TABLE idgen.lease_order (
    kind           text        NOT NULL CHECK (kind IN ('worker', 'shard')),
    identity       integer     NOT NULL CHECK (identity >= 0),
    token_epoch    bigint      NOT NULL,
    token_revision bigint      NOT NULL,
    ordered_at     timestamptz NOT NULL,
    ordered_by     text        NOT NULL,
    reason         text        NOT NULL,
    request_id     uuid,
    revision       bigint      NOT NULL,
    PRIMARY KEY (kind, identity)
);
COMMENT ON TABLE idgen.lease_order IS 'Embedded lease store: the last order of an operator against a holder of each identity. A lease whose token an order names is not renewed. Never dumped.';
COMMENT ON COLUMN idgen.lease_order.kind IS 'worker or shard.';
COMMENT ON COLUMN idgen.lease_order.identity IS 'The number that ids carry.';
COMMENT ON COLUMN idgen.lease_order.token_epoch IS 'The lease that ends by it: the epoch of its fencing token,';
COMMENT ON COLUMN idgen.lease_order.token_revision IS '... and the store revision of its grant. The next lease of the identity has another token.';
COMMENT ON COLUMN idgen.lease_order.ordered_at IS 'When, by the clock of this database.';
COMMENT ON COLUMN idgen.lease_order.ordered_by IS 'Who ordered it.';
COMMENT ON COLUMN idgen.lease_order.reason IS 'Why.';
COMMENT ON COLUMN idgen.lease_order.request_id IS 'The request that two people have approved, where the identity was taken from its holder by force. NULL: the holder was asked to give it back.';
COMMENT ON COLUMN idgen.lease_order.revision IS 'Store revision at which it was given.';

CREATE TRIGGER store_stays BEFORE DELETE OR TRUNCATE ON idgen.lease_order
FOR EACH STATEMENT EXECUTE FUNCTION idgen.store_stays();
COMMENT ON TRIGGER store_stays ON idgen.lease_order IS 'See idgen.store_stays().';
