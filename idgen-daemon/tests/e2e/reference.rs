//! docs/sql-reference.md says what the catalogue says, and the examples of the documents run.
//!
//! The catalogue is the one source: signatures, marks, columns, settings and their comments are read from an
//! installed extension and looked for in the document, and the document has none besides. What fails is printed
//! as the lines to add and the lines to remove, so that whoever adds a function adds it there by copying.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use postgres::Client;

use crate::kit::daemon::{DaemonOptions, answer};
use crate::kit::{Server, seal};

const REFERENCE: &str = "sql-reference.md";

/// Whether `o`, a row of any catalogue, is a member of the extension.
const IS_MEMBER: &str = "
    EXISTS (SELECT FROM pg_depend d JOIN pg_extension e ON e.oid = d.refobjid
             WHERE d.refclassid = 'pg_extension'::regclass AND d.deptype = 'e' AND e.extname = 'pg_idgen'
               AND d.objid = o.oid AND d.classid = o.tableoid)";

/// Heading, marks and comment of every function.
const FUNCTIONS: &str = "
    SELECT CASE n.nspname WHEN 'idgen' THEN 'idgen.' ELSE '' END || o.proname || '(' || coalesce(a.taken, '')
               || ') RETURNS ' || CASE WHEN o.proretset THEN 'SETOF ' ELSE '' END
               || coalesce('(' || a.given || ')', short(o.prorettype)),
           CASE o.provolatile WHEN 'i' THEN 'immutable' WHEN 's' THEN 'stable' ELSE 'volatile' END
               || CASE WHEN o.proisstrict THEN ', strict' ELSE '' END || ', parallel '
               || CASE o.proparallel WHEN 's' THEN 'safe' WHEN 'r' THEN 'restricted' ELSE 'unsafe' END
               || CASE WHEN o.prosecdef THEN ', security definer' ELSE '' END
               || CASE WHEN EXISTS (SELECT FROM aclexplode(coalesce(o.proacl, acldefault('f', o.proowner))) x
                                     WHERE x.grantee = 0)
                       THEN ', for everybody' ELSE ', for those it is granted to' END,
           coalesce(obj_description(o.oid, 'pg_proc'), '')
      FROM pg_proc o JOIN pg_namespace n ON n.oid = o.pronamespace
      CROSS JOIN LATERAL (
        SELECT string_agg(concat_ws(' ', t.name, t.type, 'DEFAULT ' || t.preset), ', ' ORDER BY t.nth)
                   FILTER (WHERE t.mode = 'i') AS taken,
               string_agg(concat_ws(' ', t.name, t.type), ', ' ORDER BY t.nth) FILTER (WHERE t.mode = 'o') AS given
          FROM (SELECT nth, coalesce(o.proargmodes[nth], 'i') AS mode, o.proargnames[nth] AS name, short(type) AS type,
                       regexp_replace(regexp_replace(pg_get_function_arg_default(o.oid, nth::integer),
                           '::[a-z ]+$', ''), '^''(\\d+)''$', '\\1') AS preset
                  FROM unnest(coalesce(o.proallargtypes, o.proargtypes::oid[])) WITH ORDINALITY u (type, nth)) t) a
     WHERE IS_MEMBER ORDER BY n.nspname, o.proname, o.oid";

/// Heading, comment and rows of every table, view and sequence.
const RELATIONS: &str = "
    SELECT CASE o.relkind WHEN 'v' THEN 'view ' WHEN 'S' THEN 'sequence ' ELSE 'table ' END || 'idgen.' || o.relname,
           coalesce(obj_description(o.oid, 'pg_class'), ''),
           coalesce((SELECT array_agg(format('| `%s` | %s | %s |', a.attname, short(a.atttypid),
                                             col_description(o.oid, a.attnum)) ORDER BY a.attnum)
                       FROM pg_attribute a
                      WHERE a.attrelid = o.oid AND a.attnum > 0 AND NOT a.attisdropped AND o.relkind <> 'S'), '{}')
      FROM pg_class o WHERE IS_MEMBER AND o.relkind IN ('r', 'p', 'v', 'm', 'S') ORDER BY 1";

/// A row for every setting.
const SETTINGS: &str = "
    SELECT format('| `%s` | %s | %s | %s | %s | %s |', name, coalesce(nullif(boot_val, ''), '(empty)'),
                  coalesce(unit, '-'), coalesce(array_to_string(enumvals, ', '), min_val || ' to ' || max_val, '-'),
                  context, concat_ws(' ', short_desc, extra_desc))
      FROM pg_settings WHERE name LIKE 'idgen.%' ORDER BY name";

/// One section of the document: its heading, and its paragraphs and table rows in order.
#[derive(Clone)]
struct Section {
    heading: String,
    parts: Vec<String>,
}

impl Section {
    /// As it has to be written.
    fn as_text(&self) -> String {
        let mut text = format!("#### `{}`\n", self.heading);
        let mut in_table = false;
        for part in &self.parts {
            let is_row = part.starts_with('|');
            if !(is_row && in_table) {
                text.push('\n');
            }
            if is_row && !in_table {
                text.push_str("| column | type | what |\n|---|---|---|\n");
            }
            writeln!(text, "{part}").expect("write to a string");
            in_table = is_row;
        }
        text
    }
}

fn docs(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs").join(name)
}

fn read(name: &str) -> String {
    fs::read_to_string(docs(name)).unwrap_or_else(|error| panic!("docs/{name}: {error}"))
}

/// What the installed extension has, in the words of the document.
fn installed(client: &mut Client) -> (Vec<Section>, Vec<String>) {
    client
        .batch_execute(
            "CREATE FUNCTION pg_temp.short(oid) RETURNS text LANGUAGE sql AS
             $$ SELECT replace(format_type($1, NULL), 'timestamp with time zone', 'timestamptz') $$",
        )
        .expect("make a helper");
    let query = |sql: &str| {
        sql.replace("IS_MEMBER", IS_MEMBER)
            .replace("short(", "pg_temp.short(")
    };
    let functions = client.query(&query(FUNCTIONS), &[]).expect("read functions");
    let relations = client.query(&query(RELATIONS), &[]).expect("read relations");
    let settings = client.query(SETTINGS, &[]).expect("read settings");
    let functions = functions.iter().map(|row| Section {
        heading: row.get(0),
        parts: vec![format!("*{}*", row.get::<_, String>(1)), row.get(2)],
    });
    let relations = relations.iter().map(|row| Section {
        heading: row.get(0),
        parts: [vec![row.get(1)], row.get::<_, Vec<String>>(2)].concat(),
    });
    let sections: Vec<Section> = functions.chain(relations).collect();
    assert!(sections.len() > 20, "the queries find the extension's members");
    (sections, settings.iter().map(|row| row.get(0)).collect())
}

/// The sections of level 4 whose heading is code, and the rows of all tables that begin with a setting.
fn written(document: &str) -> (BTreeMap<String, Section>, Vec<String>) {
    let mut sections = BTreeMap::new();
    let mut current: Option<Section> = None;
    let mut settings = Vec::new();
    let mut in_code = false;
    let mut at_start = true;
    for line in document.lines() {
        in_code ^= line.starts_with("```");
        if line.starts_with("```") || in_code || line.trim().is_empty() {
            at_start = true;
        } else if line.starts_with('#') {
            if let Some(section) = current.take() {
                sections.insert(section.heading.clone(), section);
            }
            current = heading(line).map(|heading| Section {
                heading,
                parts: Vec::new(),
            });
        } else if line.starts_with("| `idgen.") {
            settings.push(line.to_owned());
        } else if let Some(section) = &mut current {
            match section.parts.last_mut() {
                Some(paragraph) if !at_start && !line.starts_with('|') => {
                    paragraph.push(' ');
                    paragraph.push_str(line.trim());
                }
                _ => section.parts.push(line.trim().to_owned()),
            }
            at_start = false;
        }
    }
    sections.extend(current.map(|section| (section.heading.clone(), section)));
    (sections, settings)
}

/// The code of a heading of level 4.
fn heading(line: &str) -> Option<String> {
    let code = line.strip_prefix("#### `")?.strip_suffix('`')?;
    Some(code.to_owned())
}

/// What has to be done to the document; empty if nothing.
fn corrections(installed: (Vec<Section>, Vec<String>), document: &str) -> String {
    let (sections, settings) = installed;
    let (mut found, found_settings) = written(document);
    let mut todo = String::new();
    let mut say = |what: &str, line: &str| writeln!(todo, "{what}:\n{line}\n").expect("write to a string");
    for section in &sections {
        let Some(there) = found.remove(&section.heading) else {
            say("add this section", &section.as_text());
            continue;
        };
        let rows = |parts: &[String]| -> Vec<String> {
            let is_row = |part: &&String| part.starts_with("| `");
            parts.iter().filter(is_row).cloned().collect()
        };
        let prose = section.parts.iter().filter(|part| !part.starts_with('|'));
        let (wanted, have) = (rows(&section.parts), rows(&there.parts));
        // Further paragraphs may follow those of the catalogue.
        if !prose.zip(&there.parts).all(|(wanted, have)| wanted == have) || wanted != have {
            say("this section differs; it has to begin with", &section.as_text());
        }
    }
    for heading in found.keys() {
        say(
            "nothing of this name is installed; remove or rename the section",
            heading,
        );
    }
    for row in settings.iter().filter(|row| !found_settings.contains(row)) {
        say("add or correct this row of the settings", row);
    }
    for row in found_settings.iter().filter(|row| !settings.contains(row)) {
        say("no setting is like this; correct or remove the row", row);
    }
    todo
}

#[test]
fn the_reference_says_what_the_catalogue_says() {
    let server = Server::start();
    let todo = corrections(installed(&mut server.connect()), &read(REFERENCE));
    assert!(todo.is_empty(), "docs/{REFERENCE}:\n\n{todo}");
}

/// A check that finds nothing wrong in anything checks nothing.
#[test]
fn the_check_of_the_reference_sees_what_is_missing_stale_or_different() {
    let server = Server::start();
    let mut client = server.connect();
    let document = read(REFERENCE);
    let mut complain = |from: &str, to: &str, about: &str| {
        assert!(document.contains(from), "docs/{REFERENCE} has {from:?}");
        let todo = corrections(installed(&mut client), &document.replacen(from, to, 1));
        assert!(todo.contains(about), "{from:?} as {to:?}: {todo:?}");
        client
            .batch_execute("DROP FUNCTION pg_temp.short(oid)")
            .expect("drop the helper");
    };
    complain(
        "#### `idgen_snowflake()",
        "#### `idgen_snow()",
        "add this section:\n#### `idgen_snowflake()",
    );
    complain(
        "#### `idgen_snowflake()",
        "#### `idgen_snow()",
        "remove or rename the section:\nidgen_snow()",
    );
    complain(
        "*volatile, parallel safe",
        "*immutable, parallel safe",
        "this section differs",
    );
    complain("RETURNS uuid`", "RETURNS text`", "add this section");
    complain(
        "A UUID version 7 (RFC 9562",
        "A UUID (RFC 9562",
        "this section differs",
    );
    complain(
        "| `state` | text |",
        "| `state` | integer |",
        "this section differs",
    );
    complain(
        "| `state` | text |",
        "| `status` | text |",
        "#### `view idgen.health`",
    );
    complain(
        "| `idgen.lease_wait_ms` | 2000 |",
        "| `idgen.lease_wait_ms` | 1000 |",
        "add or correct this row",
    );
    complain(
        "| `idgen.lease_wait_ms` |",
        "| `idgen.lease_weight_ms` |",
        "correct or remove the row",
    );
}

/// All blocks of SQL, in their order, in one session of psql: what a reader copies works.
#[test]
fn the_examples_of_the_documents_run() {
    let server = seal::server();
    seal::write(&server, format!("{}\n", "0123456789abcdef".repeat(4)), 0o600);
    let _daemon = DaemonOptions::new(&server).shards("7").start();
    for name in [REFERENCE, "which-id.md"] {
        let database = name.replace(['-', '.'], "_");
        server
            .connect()
            .batch_execute(&format!("CREATE DATABASE {database}"))
            .expect("create database");
        server
            .connect_to(&database)
            .batch_execute("CREATE EXTENSION pg_idgen")
            .expect("create extension");
        let file = server.socket_dir().join(format!("{database}.sql"));
        fs::write(&file, examples(&read(name))).expect("write examples");
        let mut psql = server.client_program("psql");
        psql.args([
            "-X",
            "-q",
            "-o",
            "/dev/null",
            "-v",
            "ON_ERROR_STOP=1",
            "-d",
            &database,
            "-f",
        ])
        .arg(&file);
        let run = answer(psql);
        assert_eq!(
            run.code,
            Some(0),
            "docs/{name} (lines are its own): {}",
            run.stderr
        );
    }
}

/// The document with everything but its SQL made blank, so that psql's line numbers are the document's.
fn examples(document: &str) -> String {
    let mut in_sql = false;
    let mut script = String::new();
    let mut lines_of_sql = 0;
    for line in document.lines() {
        if line.starts_with("```") {
            in_sql = line == "```sql";
        } else if in_sql {
            script.push_str(line);
            lines_of_sql += 1;
        }
        script.push('\n');
    }
    assert!(lines_of_sql > 5, "there are examples to run");
    script
}
