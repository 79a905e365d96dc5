-- One transaction of one of the concurrent clients: a row in each table.
\set n random(1, 100000)
BEGIN;
INSERT INTO orders (customer) VALUES ('pgbench ' || :n);
INSERT INTO events (payload) VALUES ('pgbench ' || :n);
INSERT INTO invoices (cents) VALUES (:n);
COMMIT;
