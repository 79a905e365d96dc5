//! `idgenctl audit table`: values that are there twice where nothing in the database guards a column.

use postgres::Client;
use serde_json::Value;

use super::nightly_scene::Scene;
use crate::kit::daemon::Answer;
use crate::kit::sql;

const DATABASE: [&str; 3] = ["table", "--database", "postgres"];

fn ask(scene: &Scene, args: &[&str]) -> Answer {
    scene.ctl(&scene.options, &[&DATABASE, args].concat())
}

fn told(scene: &Scene, args: &[&str]) -> (Option<i32>, Value) {
    let answer = ask(scene, &[args, &["--output", "json"]].concat());
    let json = serde_json::from_str(&answer.stdout);
    (
        answer.code,
        json.unwrap_or_else(|_| panic!("{}{}", answer.stdout, answer.stderr)),
    )
}

/// What is there twice, and how often.
fn values(said: &Value) -> Vec<(String, i64)> {
    let values = said["values"].as_array().expect("values").iter();
    values
        .map(|twice| {
            let value = twice["value"].as_str().expect("a value").to_owned();
            (value, twice["times"].as_i64().expect("a count"))
        })
        .collect()
}

fn pairs(of: &[(&str, i64)]) -> Vec<(String, i64)> {
    of.iter()
        .map(|(value, times)| ((*value).to_owned(), *times))
        .collect()
}

/// Ids 1 to 20; 3 and 4 are there twice, 9 four times, and no row has three of them that is not needed.
fn tables(client: &mut Client) {
    sql::run(
        client,
        "CREATE TABLE indexed (id bigint, what text);
         INSERT INTO indexed SELECT n, 'x' FROM generate_series(1, 20) n;
         INSERT INTO indexed VALUES (3, 'y'), (4, 'y'), (9, 'y'), (9, 'z'), (9, NULL), (NULL, NULL), (NULL, NULL);
         CREATE TABLE plain AS TABLE indexed;
         CREATE INDEX ON indexed (id, what);
         CREATE SCHEMA \"Odd\";
         CREATE TABLE \"Odd\".\"My Table\" (\"The Id\" uuid, word text);
         INSERT INTO \"Odd\".\"My Table\" SELECT md5((n % 7)::text)::uuid, 'o''' || n % 2 FROM generate_series(1, 8) n;
         CREATE INDEX ON \"Odd\".\"My Table\" (\"The Id\");
         CREATE TABLE parted (id bigint, at date) PARTITION BY RANGE (at);
         CREATE TABLE parted_1 PARTITION OF parted FOR VALUES FROM ('2026-01-01') TO ('2026-02-01');
         CREATE TABLE parted_2 PARTITION OF parted FOR VALUES FROM ('2026-02-01') TO ('2026-03-01');
         CREATE UNIQUE INDEX ON parted_1 (id);
         CREATE UNIQUE INDEX ON parted_2 (id);
         INSERT INTO parted VALUES (1, '2026-01-05'), (2, '2026-01-05'), (2, '2026-02-05');
         CREATE TABLE guarded (id bigint PRIMARY KEY);
         CREATE TABLE elder (id bigint PRIMARY KEY);
         CREATE TABLE heir () INHERITS (elder);
         INSERT INTO elder VALUES (1), (2); INSERT INTO heir VALUES (2), (3);
         GRANT USAGE ON SCHEMA \"Odd\" TO idgend;
         GRANT SELECT ON indexed, plain, \"Odd\".\"My Table\", parted, guarded, elder TO idgend",
    );
}

#[test]
fn duplicates_are_found_with_an_index_and_without_one_and_of_any_type() {
    let scene = Scene::new(1, 1);
    let mut client = scene.client();
    tables(&mut client);
    let wanted = pairs(&[("3", 2), ("4", 2), ("9", 4)]);
    // Pages that end in the middle of equal values, too.
    for args in [
        &["public.indexed", "--column", "id"][..],
        &["public.indexed", "--column", "id", "--page", "1"],
        &["public.indexed", "--column", "id", "--page", "3"],
        &["public.indexed", "--column", "id", "--page", "4"],
        &["public.plain", "--column", "id"],
    ] {
        let (code, said) = told(&scene, args);
        assert_eq!((code, &said["verdict"]), (Some(3), &"FINDING".into()), "{said}");
        assert_eq!(
            (values(&said), &said["duplicates"]),
            (wanted.clone(), &3.into()),
            "{args:?}"
        );
        let how = said["how"].as_str().expect("how");
        assert_eq!(
            how.contains("indexed_id_what_idx"),
            args[0] != "public.plain",
            "{how}"
        );
    }
    // Five runs, one finding for each value and table.
    let findings: Vec<i64> = sql::column(
        &mut client,
        "SELECT lo FROM idgen.audit_finding WHERE kind = 'duplicate' AND tag = 'public.indexed.id' ORDER BY lo",
    );
    assert_eq!(findings, [3, 4, 9]);
    let seen: i32 = sql::value(
        &mut client,
        "SELECT max(seen) FROM idgen.audit_finding WHERE tag = 'public.indexed.id'",
    );
    assert_eq!(seen, 4);

    let odd = "\"Odd\".\"My Table\"";
    let (code, said) = told(&scene, &[odd, "--column", "The Id", "--page", "2"]);
    assert_eq!((code, said["duplicates"].as_u64()), (Some(3), Some(1)), "{said}");
    let (_, said) = told(&scene, &[odd, "--column", "word"]);
    assert_eq!(values(&said), pairs(&[("o'0", 4), ("o'1", 4)]));
    // Each partition guards itself, and nobody both.
    let (code, said) = told(&scene, &["public.parted", "--column", "id"]);
    assert_eq!((code, values(&said)), (Some(3), pairs(&[("2", 2)])), "{said}");
    let (code, said) = told(&scene, &["public.elder", "--column", "id"]);
    assert_eq!((code, values(&said)), (Some(3), pairs(&[("2", 2)])), "{said}");
    let (code, said) = told(&scene, &["public.guarded", "--column", "id"]);
    assert_eq!((code, &said["verdict"]), (Some(0), &"PASS".into()), "{said}");
    assert!(
        said["how"].as_str().expect("how").contains("guarded_pkey"),
        "{said}"
    );

    sql::run(
        &mut client,
        "DELETE FROM plain a USING plain b WHERE a.id = b.id AND a.ctid > b.ctid",
    );
    let (code, said) = told(&scene, &["public.plain", "--column", "id"]);
    assert_eq!((code, &said["verdict"]), (Some(0), &"PASS".into()), "{said}");
    // What somebody has dealt with is no finding any more, as long as there is nothing else.
    sql::run(
        &mut client,
        "SELECT idgen.audit_close(finding_id, 'these are meant so') FROM idgen.audit_finding WHERE tag = 'public.parted.id'",
    );
    let (code, said) = told(&scene, &["public.parted", "--column", "id"]);
    assert_eq!(
        (code, &said["closed"], &said["duplicates"]),
        (Some(0), &1.into(), &1.into()),
        "{said}"
    );
    let text = ask(&scene, &["public.indexed", "--column", "id"]).stdout;
    assert!(text.contains("3 values are there more than once"), "{text}");
}

#[test]
fn what_was_stopped_goes_on_where_it_was() {
    let scene = Scene::new(1, 1);
    let mut client = scene.client();
    tables(&mut client);
    let stopped = "INSERT INTO idgen.audit_run (kind, holder_name, progress, findings)
                   SELECT 'table', 'idgenctl of e2e', jsonb_build_object('relation', 'public.indexed', 'column', 'id', 'after', '3',
                          'identity', concat(oid, '/', pg_relation_filenode(oid))), 1
                     FROM pg_class WHERE oid = 'public.indexed'::regclass
                   RETURNING run_id";
    let run: i64 = sql::value(&mut client, stopped);
    let (code, said) = told(&scene, &["public.indexed", "--column", "id", "--page", "2"]);
    assert_eq!(code, Some(3), "{said}");
    assert_eq!(
        (said["run"].as_i64(), &said["resumed"]),
        (Some(run), &true.into())
    );
    assert_eq!(
        (values(&said), &said["duplicates"]),
        (pairs(&[("4", 2), ("9", 4)]), &3.into()),
        "what was found before counts"
    );
    let run: i64 = sql::value(&mut client, stopped);
    let (_, said) = told(&scene, &["public.indexed", "--column", "id", "--anew"]);
    assert_ne!(said["run"].as_i64(), Some(run));
    assert_eq!((values(&said).len(), &said["resumed"]), (3, &false.into()));
    let before: String = sql::value(
        &mut client,
        &format!("SELECT verdict || ': ' || reason FROM idgen.audit_run WHERE run_id = {run}"),
    );
    assert!(before.starts_with("INCONCLUSIVE: begun anew"), "{before}");
    // Behind where it was there is another table now.
    let run: i64 = sql::value(&mut client, stopped);
    sql::run(
        &mut client,
        "BEGIN; CREATE TABLE copy AS TABLE indexed; TRUNCATE indexed; INSERT INTO indexed TABLE copy; COMMIT",
    );
    let (_, said) = told(&scene, &["public.indexed", "--column", "id"]);
    assert_eq!(
        (values(&said).len(), &said["resumed"]),
        (3, &false.into()),
        "{said}"
    );
    let before: String = sql::value(
        &mut client,
        &format!("SELECT reason FROM idgen.audit_run WHERE run_id = {run}"),
    );
    assert!(before.contains("emptied"), "{before}");
    // Of another column it is no business.
    sql::run(
        &mut client,
        &stopped
            .replace("'after', '3'", "'part', jsonb_build_array(0, 1)")
            .replace("indexed", "plain"),
    );
    let (_, said) = told(&scene, &["public.plain", "--column", "what"]);
    assert_eq!(said["resumed"], false, "{said}");
    let (_, said) = told(&scene, &["public.plain", "--column", "id"]);
    assert_eq!(
        (&said["resumed"], said["duplicates"].as_u64()),
        (&true.into(), Some(4)),
        "{said}"
    );
}

#[test]
fn what_cannot_be_read_whole_is_refused() {
    let scene = Scene::new(1, 1);
    let mut client = scene.client();
    tables(&mut client);
    sql::run(
        &mut client,
        "CREATE TABLE hidden (id bigint); ALTER TABLE hidden ENABLE ROW LEVEL SECURITY; GRANT SELECT ON hidden TO idgend;
         CREATE TABLE private (id bigint); CREATE VIEW shown AS TABLE plain; GRANT SELECT ON shown TO idgend",
    );
    for (table, column, code, why) in [
        ("plain", "id", 2, "with its schema"),
        ("public.nosuch", "id", 2, "there is no column"),
        ("public.plain", "nosuch", 2, "there is no column"),
        ("public.shown", "id", 2, "is no table"),
        ("public.hidden", "id", 3, "row security"),
        ("public.private", "id", 1, "--postgres"),
    ] {
        let answer = ask(&scene, &[table, "--column", column]);
        assert_eq!(
            (answer.code, answer.stdout.as_str()),
            (Some(code), ""),
            "{table}: {}",
            answer.stderr
        );
        assert!(answer.stderr.contains(why), "{table}: {}", answer.stderr);
    }
    let login = scene.server.conninfo();
    let (code, said) = told(
        &scene,
        &["public.private", "--column", "id", "--postgres", &login],
    );
    assert_eq!((code, &said["verdict"]), (Some(0), &"PASS".into()), "{said}");
    // Somebody is at it.
    sql::run(
        &mut client,
        "SELECT pg_advisory_lock(1768187239, hashint8('plain'::regclass::oid::int8 * 65536 + 1))",
    );
    let answer = ask(&scene, &["public.plain", "--column", "id"]);
    assert_eq!(answer.code, Some(3), "{}", answer.stdout);
    assert!(answer.stderr.contains("right now"), "{}", answer.stderr);
}
