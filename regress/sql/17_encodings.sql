-- A database in another encoding: names and texts that are not ASCII are refused with the code they have everywhere.
CREATE DATABASE idgen_euc ENCODING 'EUC_JP' TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C';
\set home :DBNAME
\c idgen_euc
SET client_min_messages = error;
CREATE EXTENSION pg_idgen;
\set VERBOSITY sqlstate
SELECT idgen_segment(convert_from('\xa4a2', 'EUC_JP'));
SELECT idgen_create_segment(convert_from('\xa4a2', 'EUC_JP'));
SELECT idgen_decode(convert_from('\xa4a2', 'EUC_JP'));
SELECT idgen_public_id(convert_from('\xa4a2', 'EUC_JP'));
SELECT idgen_open(convert_from('\xa4a2', 'EUC_JP'), 'ord');
SELECT idgen_timestamp(1, convert_from('\xa4a2', 'EUC_JP'));
SELECT idgen.register_format(convert_from('\xa4a2', 'EUC_JP'), '2020-01-01+00', 41, 10, 12);
\set VERBOSITY terse
SELECT idgen_segment(convert_from('\xa4a2', 'EUC_JP'));
SELECT idgen_decode(convert_from('\xa4a2', 'EUC_JP'));
SELECT idgen_decode(idgen_encode(42)) AS works, idgen_uuidv7() IS NOT NULL AS too;
\c :home
DROP DATABASE idgen_euc;
