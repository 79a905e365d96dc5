-- What a database of the extension has that somebody would miss after an upgrade of the server.
CREATE EXTENSION pg_idgen;
CREATE ROLE idgend LOGIN;
CREATE ROLE alice;
CREATE ROLE bob;
CREATE ROLE stranger;
SELECT idgen.grant_daemon('idgend');
SELECT idgen.grant_admin('alice');

SELECT idgen_create_segment('invoices');
CREATE TABLE invoice (number bigint PRIMARY KEY DEFAULT idgen_segment('invoices'), n int);
INSERT INTO invoice (n) SELECT generate_series(1, 3500);

SELECT idgen_create_segment('idle');
SELECT idgen_create_segment('exact', step => 100, max_step => 100);
SELECT idgen.set_safety_burn('exact', 0);
SELECT count(idgen_segment('exact')) FROM generate_series(1, 150);
SELECT idgen_create_segment('gone');
SELECT idgen_segment('gone');
SELECT idgen_drop_segment('gone');

SET ROLE alice;
SELECT idgen_create_segment('lent');
SELECT idgen.grant_segment('lent', 'bob');
SELECT idgen_segment('lent');
RESET ROLE;

CREATE TABLE purchase (id bigserial PRIMARY KEY, n int);
INSERT INTO purchase (n) SELECT generate_series(1, 1000);
SELECT idgen_adopt_sequence('purchase_id_seq', 'purchases');
INSERT INTO purchase (n) SELECT generate_series(1, 500);

CREATE TABLE answered AS SELECT idgen_segment_range('invoices', 100, 'job-1') AS ids;
SELECT idgen.register_format('photos', '2011-08-24 21:07:01.721+00', 41, 13, 10, sign_bits => 0, is_shard => true);
SELECT idgen_register_prefix('ord');
CREATE TABLE public_id (id text PRIMARY KEY DEFAULT idgen_public_id('ord'), at uuid DEFAULT idgen_uuidv7());
INSERT INTO public_id SELECT FROM generate_series(1, 10);

-- Filled when a daemon runs.
CREATE TABLE event (id bigint PRIMARY KEY DEFAULT idgen_snowflake(), n int);

-- Another database: it has its own space, and a place of its own to be told that it is elsewhere now.
CREATE DATABASE shop;
\connect shop
CREATE EXTENSION pg_idgen;
SELECT idgen_create_segment('baskets');
CREATE TABLE basket (id bigint PRIMARY KEY DEFAULT idgen_segment('baskets'), n int);
INSERT INTO basket (n) SELECT generate_series(1, 1500);
