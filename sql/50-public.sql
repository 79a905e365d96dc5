-- Ids for the outside: public ids with registered prefixes, and sealed ids.

CREATE TABLE idgen.prefix (
    prefix     text COLLATE "C" PRIMARY KEY CHECK (prefix ~ '^[a-z][a-z0-9]{0,15}$'),
    owner      name NOT NULL,
    created_at timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp()
);
COMMENT ON TABLE idgen.prefix IS 'The prefixes that idgen_public_id() may use; filled by idgen_register_prefix(). A row is never changed or removed.';
COMMENT ON COLUMN idgen.prefix.prefix IS 'What public ids begin with: a lower-case letter and up to 15 more lower-case letters and digits.';
COMMENT ON COLUMN idgen.prefix.owner IS 'Role that has registered it, by name: oids do not survive a dump.';
COMMENT ON COLUMN idgen.prefix.created_at IS 'When.';
SELECT pg_catalog.pg_extension_config_dump('idgen.prefix', '');

CREATE FUNCTION idgen.prefix_changed()
RETURNS trigger
LANGUAGE c
AS 'MODULE_PATHNAME', 'idgen_prefix_changed';
COMMENT ON FUNCTION idgen.prefix_changed() IS 'Trigger: tells every session at commit that what it remembers of prefixes is void.';

CREATE FUNCTION idgen.prefix_stays()
RETURNS trigger
LANGUAGE c
AS 'MODULE_PATHNAME', 'idgen_prefix_stays';
COMMENT ON FUNCTION idgen.prefix_stays() IS 'Trigger: refuses with IG019, because ids with the prefix may be anywhere.';

CREATE TRIGGER prefix_changed
AFTER INSERT OR DELETE OR TRUNCATE OR UPDATE ON idgen.prefix
FOR EACH STATEMENT EXECUTE FUNCTION idgen.prefix_changed();
COMMENT ON TRIGGER prefix_changed ON idgen.prefix IS 'See idgen.prefix_changed().';
CREATE TRIGGER prefix_stays
BEFORE DELETE OR TRUNCATE OR UPDATE ON idgen.prefix
FOR EACH STATEMENT EXECUTE FUNCTION idgen.prefix_stays();
COMMENT ON TRIGGER prefix_stays ON idgen.prefix IS 'See idgen.prefix_stays().';

CREATE VIEW idgen.prefixes AS
SELECT p.prefix, p.owner, p.created_at FROM idgen.prefix p;
COMMENT ON VIEW idgen.prefixes IS 'The registered prefixes, for everybody.';
COMMENT ON COLUMN idgen.prefixes.prefix IS 'What public ids begin with.';
COMMENT ON COLUMN idgen.prefixes.owner IS 'Role that has registered it.';
COMMENT ON COLUMN idgen.prefixes.created_at IS 'When.';
GRANT SELECT ON idgen.prefixes TO PUBLIC;

CREATE FUNCTION idgen_register_prefix(prefix text)
RETURNS boolean
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'idgen_register_prefix';
COMMENT ON FUNCTION idgen_register_prefix(text) IS
'Allow idgen_public_id() to use a prefix, for ever: 1 to 16 characters, a lower-case letter and then lower-case letters and digits. true: registered now; false: it was already, by whoever idgen.prefixes names. Can be used at once in the same transaction. For the owner of the extension and roles with idgen.grant_admin(). Errors: 22023 not of this form, 22004 NULL, IG012 in recovery.';
REVOKE ALL ON FUNCTION idgen_register_prefix(text) FROM PUBLIC;

CREATE FUNCTION idgen_public_id(prefix text)
RETURNS text
LANGUAGE c VOLATILE PARALLEL SAFE
AS 'MODULE_PATHNAME', 'idgen_public_id';
COMMENT ON FUNCTION idgen_public_id(text) IS
'A new public id: the prefix, an underscore, and 22 characters 0-9A-Za-z that are 128 bits from the server''s strong random source. Tells nothing, cannot be guessed, in no order. Needs no lease, no preload, and works on a standby. Errors: IG018 the prefix is not registered in this database, 22023 no prefix by its form, 22004 NULL.';

CREATE FUNCTION idgen_seal(id bigint, prefix text)
RETURNS text
LANGUAGE c STABLE STRICT PARALLEL SAFE
AS 'MODULE_PATHNAME', 'idgen_seal';
COMMENT ON FUNCTION idgen_seal(bigint, text) IS
'An id in a form for the outside that tells nothing of it: the prefix, an underscore, 22 characters. One AES block of id and prefix under the first key of idgen.seal_key_file, so the same id, prefix and key give the same text. The prefix must have the right form and need not be registered. Any bigint can be sealed. Errors: IG020 no key file, IG021 the key file is refused, 22023 no prefix by its form.';

CREATE FUNCTION idgen_open(sealed text, prefix text)
RETURNS bigint
LANGUAGE c STABLE STRICT PARALLEL SAFE
AS 'MODULE_PATHNAME', 'idgen_open';
COMMENT ON FUNCTION idgen_open(text, text) IS
'The id that idgen_seal() was given, with the same prefix and any of the keys in use. Errors: IG022 well-formed, but not sealed with this prefix and these keys; 22P02 no sealed id by its form; IG020 no key file; IG021 the key file is refused; 22023 no prefix by its form.';

CREATE FUNCTION idgen.seal_key_count()
RETURNS integer
LANGUAGE c VOLATILE STRICT PARALLEL SAFE
AS 'MODULE_PATHNAME', 'idgen_seal_key_count';
COMMENT ON FUNCTION idgen.seal_key_count() IS
'How many keys idgen_open() tries in this session now, 0 to 16; 0: idgen.seal_key_file names no file. For a look after a rotation. Error: IG021 the key file is refused.';
REVOKE ALL ON FUNCTION idgen.seal_key_count() FROM PUBLIC;
