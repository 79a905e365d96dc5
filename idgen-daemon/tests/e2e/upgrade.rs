//! `ALTER EXTENSION pg_idgen UPDATE`: a database that was updated, one that was dumped and restored, and a fresh one
//! are the same.

use std::process::Command;

use postgres::Client;

use crate::kit::daemon::answer;
use crate::kit::{Server, sql};

/// The first release.
const FIRST: &str = "0.1.0";

/// Everything that the extension consists of, a line each. Columns by name: those that came with an update are the
/// last of their table, and nothing depends on their place. Rows of configuration are compared by the tests of dumps.
const CATALOGUE: &str = "
WITH member AS (
    SELECT d.classid, d.objid FROM pg_depend d JOIN pg_extension e ON e.oid = d.refobjid
     WHERE d.refclassid = 'pg_extension'::regclass AND d.deptype = 'e' AND e.extname = 'pg_idgen'),
relation AS (
    SELECT c.* FROM pg_class c JOIN member m ON m.classid = 'pg_class'::regclass AND m.objid = c.oid)
SELECT concat_ws(' ', 'member', pg_describe_object(classid, objid, 0), obj_description(objid, classid::regclass::name)) FROM member
UNION ALL
SELECT concat_ws(' ', 'function', p.oid::regprocedure, pg_get_functiondef(p.oid), p.procost, p.prorows, p.prosupport, acl(p.proacl))
  FROM pg_proc p JOIN member m ON m.classid = 'pg_proc'::regclass AND m.objid = p.oid
UNION ALL
SELECT concat_ws(' ', 'relation', c.oid::regclass, c.relkind, c.relpersistence, c.reloptions, c.relreplident, c.relrowsecurity,
                 pg_get_partkeydef(c.oid), acl(c.relacl), CASE c.relkind WHEN 'v' THEN pg_get_viewdef(c.oid) END)
  FROM relation c
UNION ALL
SELECT concat_ws(' ', 'column', c.oid::regclass, a.attname, format_type(a.atttypid, a.atttypmod), a.attcollation::regcollation,
                 a.attnotnull, pg_get_expr(d.adbin, d.adrelid), a.attstorage, acl(a.attacl), col_description(c.oid, a.attnum))
  FROM relation c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
  LEFT JOIN pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum
UNION ALL
SELECT concat_ws(' ', 'constraint', c.oid::regclass, k.conname, k.convalidated, pg_get_constraintdef(k.oid))
  FROM relation c JOIN pg_constraint k ON k.conrelid = c.oid
UNION ALL
SELECT concat_ws(' ', 'index', pg_get_indexdef(i.indexrelid)) FROM relation c JOIN pg_index i ON i.indrelid = c.oid
UNION ALL
SELECT concat_ws(' ', 'trigger', c.oid::regclass, t.tgenabled, pg_get_triggerdef(t.oid), obj_description(t.oid, 'pg_trigger'))
  FROM relation c JOIN pg_trigger t ON t.tgrelid = c.oid AND NOT t.tgisinternal
UNION ALL
SELECT concat_ws(' ', 'schema', n.nspname, acl(n.nspacl)) FROM pg_namespace n
  JOIN member m ON m.classid = 'pg_namespace'::regclass AND m.objid = n.oid
UNION ALL
SELECT concat_ws(' ', 'dumped', k.oid::regclass, quote_literal(k.condition))
  FROM pg_extension e, LATERAL unnest(e.extconfig, e.extcondition) AS k (oid, condition) WHERE e.extname = 'pg_idgen'
UNION ALL
SELECT concat_ws(' ', 'extension', e.extversion, e.extrelocatable) FROM pg_extension e WHERE e.extname = 'pg_idgen'";

/// Rights in an order of their own: it depends on who was given his first.
const RIGHTS: &str = "
CREATE FUNCTION pg_temp.acl(aclitem[]) RETURNS text LANGUAGE sql AS
$$ SELECT string_agg(a::text, ',' ORDER BY a::text) FROM unnest($1) a $$";

fn catalogue(client: &mut Client) -> Vec<String> {
    sql::run(client, RIGHTS);
    let mut lines: Vec<String> = sql::column(client, &CATALOGUE.replace("acl(", "pg_temp.acl("));
    lines.sort_unstable();
    assert!(lines.len() > 200, "only {} lines", lines.len());
    lines
}

fn assert_same(what: &str, expected: &[String], found: &[String]) {
    let missing: Vec<_> = expected.iter().filter(|line| !found.contains(line)).collect();
    let more: Vec<_> = found.iter().filter(|line| !expected.contains(line)).collect();
    assert!(
        missing.is_empty() && more.is_empty(),
        "{what}: a fresh database has\n{missing:#?}\nwhere it has\n{more:#?}"
    );
}

/// As a database of the first release is left behind: a tag that was drawn from, a column that draws from it, a daemon's
/// role, and its store.
fn first_release(server: &Server, database: &str) {
    sql::run(&mut server.connect(), &format!("CREATE DATABASE {database}"));
    let mut client = server.connect_to(database);
    sql::run(
        &mut client,
        &format!(
            "CREATE EXTENSION pg_idgen VERSION '{FIRST}';
             SELECT idgen.grant_daemon('idgend');
             INSERT INTO idgen.segment (tag, owner, start_id, max_id, limit_id, step, max_step, tag_seq)
             VALUES ('invoices', 'postgres', 1, 4000, 1000000, 100, 100, 41);
             INSERT INTO idgen.segment_grant (tag, grantee) VALUES ('invoices', 'idgend');
             CREATE TABLE invoice (number bigint PRIMARY KEY DEFAULT idgen_segment('invoices'), n int);
             INSERT INTO invoice VALUES (3999, 0), (4000, 0);
             INSERT INTO idgen.cell (cell_id, worker_format, epoch, epoch_nonce, system_identifier, timeline, database_oid)
             SELECT gen_random_uuid(), 'classic', 0, gen_random_uuid(), i.* FROM idgen.store_identity() i;"
        ),
    );
}

fn update(server: &Server, database: &str) -> Client {
    let mut client = server.connect_to(database);
    sql::run(
        &mut client,
        "ALTER EXTENSION pg_idgen UPDATE; SELECT idgen.grant_daemon('idgend')",
    );
    client
}

fn dump_and_restore(server: &Server, from: &str, to: &str) {
    let file = server.socket_dir().join("dump.sql");
    let mut dump: Command = server.client_program("pg_dump");
    dump.arg("-f").arg(&file).arg(from);
    let dumped = answer(dump);
    assert_eq!((dumped.code, dumped.stderr.as_str()), (Some(0), ""), "pg_dump");
    sql::run(&mut server.connect(), &format!("CREATE DATABASE {to}"));
    let mut psql = server.client_program("psql");
    psql.args(["-X", "-q", "-1", "-v", "ON_ERROR_STOP=1", "-d", to, "-f"])
        .arg(&file);
    let restored = answer(psql);
    assert_eq!((restored.code, restored.stderr.as_str()), (Some(0), ""), "psql");
}

#[test]
fn a_fresh_an_updated_and_a_restored_database_are_the_same() {
    let server = Server::start();
    first_release(&server, "older");
    let fresh = catalogue(&mut server.connect());
    let before = catalogue(&mut server.connect_to("older"));
    assert_ne!(fresh, before, "the first release is another one");

    let mut updated = update(&server, "older");
    assert_same("updated", &fresh, &catalogue(&mut updated));
    dump_and_restore(&server, "older", "restored");
    assert_same("restored", &fresh, &catalogue(&mut server.connect_to("restored")));
}

/// 0.1.0 did not remember where it was: what it may have granted elsewhere is passed over once, and recorded.
#[test]
fn tags_of_the_first_release_go_on_above_what_was_granted() {
    let server = Server::start();
    first_release(&server, "older");
    let mut client = update(&server, "older");
    let insert = "INSERT INTO invoice (n) SELECT n FROM generate_series(1, 500) n RETURNING number";
    let numbers: Vec<i64> = sql::column(&mut client, insert);
    assert!(numbers.iter().all(|number| *number > 4_000), "{numbers:?}");
    let events: Vec<String> = sql::column(
        &mut client,
        "SELECT concat_ws(' ', kind, lo) FROM idgen.audit_event WHERE tag = 'invoices' ORDER BY tag_seq LIMIT 2",
    );
    assert_eq!(events[0], "segment.burn 4001");
    assert!(events[1].starts_with("segment.grant "), "{events:?}");
    let seq: Vec<i64> = sql::column(
        &mut client,
        "SELECT tag_seq FROM idgen.audit_event WHERE tag = 'invoices' ORDER BY tag_seq",
    );
    assert_eq!(seq[0], 42, "events are counted on");
    let epoch: i64 = sql::value(&mut client, "SELECT epoch_known FROM idgen.cell");
    assert_eq!(epoch, 0, "the lease store is kept");
}
