//! Sequences that become tags and sequences again while others write: no number twice, no row lost, no write that
//! fails, but for those that call `nextval()` themselves.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};

use postgres::{Client, Error, Transaction};

use crate::kit::daemon::answer;
use crate::kit::{PATIENCE, Server, ServerOptions, eventually_true, sql};

/// Three sequences: a serial; one with a cache for two tables, one of them partitioned; an identity. Only the first
/// has a key that would refuse a duplicate, the others would show it.
const SCHEMA: &str = "
    CREATE TABLE customer (id serial PRIMARY KEY, name text);
    CREATE SEQUENCE shared CACHE 20;
    CREATE TABLE purchase (id bigint NOT NULL DEFAULT nextval('shared'), customer int NOT NULL REFERENCES customer);
    CREATE INDEX ON purchase (id);
    CREATE TABLE log (id bigint NOT NULL DEFAULT nextval('shared'), day int) PARTITION BY RANGE (day);
    CREATE TABLE log_0 PARTITION OF log FOR VALUES FROM (0) TO (10);
    CREATE TABLE log_1 PARTITION OF log FOR VALUES FROM (10) TO (20);
    CREATE INDEX ON log (id);
    CREATE TABLE line (id int GENERATED ALWAYS AS IDENTITY, customer int NOT NULL REFERENCES customer);
    CREATE INDEX ON line (id);
    INSERT INTO customer (name) SELECT 'populated' FROM generate_series(1, 2000);
    INSERT INTO purchase (customer) SELECT n FROM generate_series(1, 2000) n;
    INSERT INTO log (day) SELECT n % 20 FROM generate_series(1, 2000) n;
    INSERT INTO line (customer) SELECT n FROM generate_series(1, 2000) n;";

/// Name of the sequence, of the tag that takes its place, and its numbers.
const SEQUENCES: [(&str, &str, &str); 3] = [
    ("customer_id_seq", "customer", "SELECT id::bigint FROM customer"),
    (
        "shared",
        "shared tag",
        "SELECT id FROM purchase UNION ALL SELECT id FROM log",
    ),
    ("line_id_seq", "line", "SELECT id::bigint FROM line"),
];

/// The numbers of one transaction: which tag's, and which.
type Numbers = Vec<(&'static str, i64)>;

/// What a session does over and over, and a SQLSTATE that it may meet.
type Kind = (fn(&mut Transaction<'_>) -> Result<Numbers, Error>, &'static str);

const NOTHING: &str = "nothing";

fn insert(transaction: &mut Transaction<'_>, sql: &str) -> Result<i64, Error> {
    Ok(transaction.query_one(sql, &[])?.get(0))
}

/// Everything in one transaction, with foreign keys to what it has just made.
fn an_order(transaction: &mut Transaction<'_>) -> Result<Numbers, Error> {
    let customer = insert(
        transaction,
        "INSERT INTO customer (name) VALUES ('new') RETURNING id::bigint",
    )?;
    let mut numbers = vec![("customer", customer)];
    for day in [3, 13] {
        let purchase = format!("INSERT INTO purchase (customer) VALUES ({customer}) RETURNING id");
        let log = format!("INSERT INTO log (day) VALUES ({day}) RETURNING id");
        let line = format!("INSERT INTO line (customer) VALUES ({customer}) RETURNING id::bigint");
        numbers.push(("shared tag", insert(transaction, &purchase)?));
        numbers.push(("shared tag", insert(transaction, &log)?));
        numbers.push(("line", insert(transaction, &line)?));
    }
    Ok(numbers)
}

/// Reads a table before it writes to it, and writes to a partition beside its parent.
fn read_then_write(transaction: &mut Transaction<'_>) -> Result<Numbers, Error> {
    insert(transaction, "SELECT count(*) FROM log_1")?;
    let log = insert(transaction, "INSERT INTO log_1 (day) VALUES (11) RETURNING id")?;
    insert(transaction, "SELECT count(*) FROM line WHERE id < 100")?;
    let line = insert(
        transaction,
        "INSERT INTO line (customer) VALUES (1) RETURNING id::bigint",
    )?;
    Ok(vec![("shared tag", log), ("line", line)])
}

/// As programs do that want to know the number before the row: it holds the sequence when it comes to the table.
fn nextval_first(transaction: &mut Transaction<'_>) -> Result<Numbers, Error> {
    let id = insert(transaction, "SELECT nextval('shared')")?;
    transaction.execute("INSERT INTO purchase (id, customer) VALUES ($1, 1)", &[&id])?;
    Ok(vec![("shared tag", id)])
}

struct Writers {
    stop: Arc<AtomicBool>,
    committed: Arc<AtomicU64>,
    threads: Vec<JoinHandle<Numbers>>,
}

impl Writers {
    fn start(server: &Server, kinds: &[Kind]) -> Self {
        let (stop, committed) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let session = |&(write, excused): &Kind| {
            let (connect, stop, committed) = (server.connector(), stop.clone(), committed.clone());
            thread::spawn(move || {
                let mut client = connect().expect("connect");
                let mut numbers = Numbers::new();
                while !stop.load(Ordering::Relaxed) {
                    if let Some(written) = committed_numbers(&mut client, write, excused) {
                        numbers.extend(written);
                        committed.fetch_add(1, Ordering::Relaxed);
                    }
                }
                numbers
            })
        };
        Writers {
            threads: kinds.iter().map(session).collect(),
            stop,
            committed,
        }
    }

    /// Waits until this many more transactions have been committed, or one has failed.
    fn let_them_write(&self, more: u64) {
        let goal = self.committed.load(Ordering::Relaxed) + more;
        eventually_true(PATIENCE, "the writers go on", || {
            self.threads.iter().any(JoinHandle::is_finished) || self.committed.load(Ordering::Relaxed) >= goal
        });
    }

    fn finish(self) -> Numbers {
        self.stop.store(true, Ordering::Relaxed);
        let numbers = self
            .threads
            .into_iter()
            .map(|thread| thread.join().expect("a writer"));
        numbers.flatten().collect()
    }
}

/// `None`: the transaction met what it is excused for.
fn committed_numbers(
    client: &mut Client,
    write: fn(&mut Transaction<'_>) -> Result<Numbers, Error>,
    excused: &str,
) -> Option<Numbers> {
    let mut transaction = client.transaction().expect("begin");
    match write(&mut transaction).and_then(|numbers| transaction.commit().map(|()| numbers)) {
        Ok(numbers) => Some(numbers),
        Err(error) => {
            let code = error.code().map(|code| code.code().to_owned());
            assert_eq!(code.as_deref(), Some(excused), "{}", sql::describe(&error));
            None
        }
    }
}

fn numbers_of(client: &mut Client, query: &str) -> Vec<i64> {
    let mut numbers: Vec<i64> = sql::column(client, query);
    numbers.sort_unstable();
    numbers
}

/// What was there before and what was committed since is there, all of it, and each number once.
fn assert_nothing_lost_or_twice(client: &mut Client, before: &[Vec<i64>], written: &Numbers) {
    assert!(written.len() > 500, "{} numbers say nothing", written.len());
    for ((_, tag, query), before) in SEQUENCES.iter().zip(before) {
        let since = written.iter().filter(|(of, _)| of == tag);
        let mut expected: Vec<i64> = before.iter().copied().chain(since.map(|(_, id)| *id)).collect();
        expected.sort_unstable();
        let found = numbers_of(client, query);
        let twice = found.windows(2).find(|pair| pair[0] == pair[1]);
        assert_eq!(twice, None, "{tag}: a number twice");
        assert!(
            found == expected,
            "{tag}: {} rows, {} expected",
            found.len(),
            expected.len()
        );
        assert!(found.len() > before.len(), "{tag}: nobody has written");
    }
}

fn adopt(client: &mut Client, sequence: &str, tag: &str) {
    sql::run(
        client,
        &format!("SELECT * FROM idgen_adopt_sequence('{sequence}', '{tag}')"),
    );
}

fn release(client: &mut Client, tag: &str) {
    sql::run(client, &format!("SELECT * FROM idgen_release_sequence('{tag}')"));
}

/// Deadlocks are to be found at once, not when the lock that makes one has been given back.
fn server() -> Server {
    Server::with(ServerOptions {
        settings: vec!["deadlock_timeout = '20ms'".into()],
        ..ServerOptions::default()
    })
}

#[test]
fn sequences_move_there_and_back_on_a_populated_schema_while_others_write() {
    let server = server();
    let mut client = server.connect();
    sql::run(&mut client, SCHEMA);
    let before = SEQUENCES.map(|(_, _, query)| numbers_of(&mut client, query));
    let order: Kind = (an_order, NOTHING);
    let writers = Writers::start(&server, &[order, order, order, (read_then_write, NOTHING)]);
    for _ in 0..3 {
        for (sequence, tag, _) in SEQUENCES {
            writers.let_them_write(40);
            adopt(&mut client, sequence, tag);
        }
        writers.let_them_write(100);
        for (_, tag, _) in SEQUENCES {
            release(&mut client, tag);
            writers.let_them_write(40);
        }
    }
    let written = writers.finish();
    assert_nothing_lost_or_twice(&mut client, &before, &written);
    // What is here now is what was here first.
    let definitions = "SELECT string_agg(concat_ws(' ', a.attrelid::regclass, a.attname, nullif(a.attidentity, ''), pg_get_expr(d.adbin, d.adrelid)), ', '
                                         ORDER BY a.attrelid::regclass::text)
                         FROM pg_attribute a LEFT JOIN pg_attrdef d ON (d.adrelid, d.adnum) = (a.attrelid, a.attnum)
                        WHERE a.attname = 'id' AND a.attrelid::regclass::text = ANY ('{customer,purchase,log,log_0,log_1,line}')";
    assert_eq!(
        sql::value::<String>(&mut client, definitions),
        "customer id nextval('customer_id_seq'::regclass), line id a, log id nextval('shared'::regclass), \
         log_0 id nextval('shared'::regclass), log_1 id nextval('shared'::regclass), purchase id nextval('shared'::regclass)"
    );
}

#[test]
fn sessions_that_hold_the_sequence_first_or_the_table_first_are_never_deadlocked() {
    let server = server();
    let mut client = server.connect();
    sql::run(&mut client, SCHEMA);
    let before = SEQUENCES.map(|(_, _, query)| numbers_of(&mut client, query));
    let order: Kind = (an_order, NOTHING);
    // At its end, which is where it stands, nextval() is refused: that is the point of it.
    let first: Kind = (nextval_first, "2200H");
    let writers = Writers::start(&server, &[order, first, first, (read_then_write, NOTHING)]);
    for _ in 0..8 {
        writers.let_them_write(40);
        adopt(&mut client, "shared", "shared tag");
        writers.let_them_write(20);
        release(&mut client, "shared tag");
    }
    writers.let_them_write(100);
    let written = writers.finish();
    assert_nothing_lost_or_twice(&mut client, &before, &written);
}

#[test]
fn what_a_session_has_cached_of_a_sequence_does_not_come_after_it_is_adopted_nor_after_it_is_back() {
    let server = Server::start();
    let mut client = server.connect();
    sql::run(
        &mut client,
        "CREATE SEQUENCE cached CACHE 100; CREATE TABLE t (id bigint DEFAULT nextval('cached'))",
    );
    let mut other = server.connect();
    assert_eq!(sql::value::<i64>(&mut other, "SELECT nextval('cached')"), 1);
    adopt(&mut client, "cached", "t");
    sql::refusal(&mut other, "SELECT nextval('cached')", "2200H");
    let own: i64 = sql::value(&mut other, "INSERT INTO t DEFAULT VALUES RETURNING id");
    assert_eq!(own, 101, "above the cache of the other session");
    release(&mut client, "t");
    let granted: i64 = sql::value(&mut client, "SELECT max_id FROM idgen.segment WHERE tag = 't'");
    let back: i64 = sql::value(&mut other, "INSERT INTO t DEFAULT VALUES RETURNING id");
    assert_eq!(back, granted + 1, "above everything that the tag had granted");
}

#[test]
fn an_adoption_gives_up_at_its_lock_timeout_and_leaves_everything_as_it_was() {
    let server = Server::start();
    let mut client = server.connect();
    sql::run(&mut client, "CREATE TABLE t (id bigserial PRIMARY KEY, n int)");
    let mut writer = server.connect();
    let mut open = writer.transaction().expect("begin");
    open.batch_execute("INSERT INTO t (n) VALUES (1)")
        .expect("insert");
    sql::run(&mut client, "SET lock_timeout = '50ms'");
    sql::refusal(
        &mut client,
        "SELECT * FROM idgen_adopt_sequence('t_id_seq', 't')",
        "55P03",
    );
    open.batch_execute("INSERT INTO t (n) VALUES (2)")
        .expect("insert");
    open.commit().expect("commit");
    assert_eq!(sql::value::<i64>(&mut client, "SELECT nextval('t_id_seq')"), 3);
    adopt(&mut client, "t_id_seq", "t");

    let mut open = writer.transaction().expect("begin");
    open.batch_execute("INSERT INTO t (n) VALUES (4)")
        .expect("insert");
    sql::refusal(&mut client, "SELECT * FROM idgen_release_sequence('t')", "55P03");
    open.batch_execute("INSERT INTO t (n) VALUES (5)")
        .expect("insert");
    open.commit().expect("commit");
    assert_eq!(
        sql::column::<i64>(&mut client, "SELECT id FROM t ORDER BY id"),
        [1, 2, 4, 5]
    );
}

#[test]
fn an_adopted_table_is_dumped_and_restored_and_the_sequence_is_put_back_there() {
    let source = Server::start();
    let mut client = source.connect();
    sql::run(&mut client, "CREATE DATABASE app");
    source.install_extension("app");
    let mut client = source.connect_to("app");
    sql::run(&mut client, SCHEMA);
    for (sequence, tag, _) in SEQUENCES {
        adopt(&mut client, sequence, tag);
    }
    sql::run(
        &mut client,
        "INSERT INTO purchase (customer) VALUES (1); INSERT INTO line (customer) VALUES (1)",
    );
    let mut dump = source.client_program("pg_dump");
    dump.arg("app");
    let dumped = answer(dump);
    assert_eq!((dumped.code, dumped.stderr.as_str()), (Some(0), ""));

    let target = Server::with(ServerOptions {
        extension: false,
        own_identity: true,
        ..ServerOptions::default()
    });
    for statement in ["CREATE ROLE idgend LOGIN", "CREATE DATABASE app"] {
        sql::run(&mut target.connect(), statement);
    }
    let file = target.socket_dir().join("app.sql");
    std::fs::write(&file, dumped.stdout).expect("write the dump");
    let mut psql = target.client_program("psql");
    psql.args(["-X", "-q", "-v", "ON_ERROR_STOP=1", "-d", "app", "-f"])
        .arg(&file);
    let restored = answer(psql);
    assert_eq!((restored.code, restored.stderr.as_str()), (Some(0), ""));

    let mut there = target.connect_to("app");
    for (sequence, tag, query) in SEQUENCES {
        // What the dump does not know of has to be passed over before the sequence can go on.
        sql::refusal(
            &mut there,
            &format!("SELECT * FROM idgen_release_sequence('{tag}')"),
            "IG028",
        );
        let highest = *numbers_of(&mut there, query).last().expect("rows");
        let next: i64 = sql::value(&mut there, &format!("SELECT idgen_segment('{tag}')"));
        assert!(next > highest, "{tag}: {next} after {highest}");
        if tag != "line" {
            sql::refusal(&mut there, &format!("SELECT nextval('{sequence}')"), "2200H");
        }
        release(&mut there, tag);
        let back: i64 = sql::value(&mut there, &format!("SELECT nextval('{sequence}')"));
        assert!(back > next, "{tag}: {back} after {next}");
    }
    sql::run(
        &mut there,
        "INSERT INTO purchase (customer) VALUES (1); INSERT INTO line (customer) VALUES (1); INSERT INTO customer (name) VALUES ('there')",
    );
}
