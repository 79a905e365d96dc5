-- Three tables, three kinds of keys. Nothing else is needed: the DEFAULT does it.
SELECT idgen_create_segment('invoices');

CREATE TABLE orders (
    id       bigint PRIMARY KEY DEFAULT idgen_snowflake(),
    customer text NOT NULL
);

CREATE TABLE events (
    id      uuid PRIMARY KEY DEFAULT idgen_uuidv7(),
    payload text NOT NULL
);

CREATE TABLE invoices (
    number bigint PRIMARY KEY DEFAULT idgen_segment('invoices'),
    cents  bigint NOT NULL
);
