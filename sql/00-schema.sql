-- pg_idgen: the install script, in the order of its parts (make install joins them).
-- Functions named idgen_* are made in the schema that CREATE EXTENSION chooses; everything else lives in
-- schema idgen, which is the extension's own.

CREATE SCHEMA idgen;
COMMENT ON SCHEMA idgen IS 'pg_idgen: tables, views and administration. The generators (idgen_*) are in the extension''s schema.';
GRANT USAGE ON SCHEMA idgen TO PUBLIC;
