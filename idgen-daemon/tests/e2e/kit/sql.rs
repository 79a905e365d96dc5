//! Small helpers for statements whose answer, or whose refusal, is the point of a test.

use postgres::error::DbError;
use postgres::types::FromSqlOwned;
use postgres::{Client, Error};

/// The single value of a query.
pub fn value<T: FromSqlOwned>(client: &mut Client, sql: &str) -> T {
    client
        .query_one(sql, &[])
        .unwrap_or_else(|error| panic!("{sql}: {}", describe(&error)))
        .get(0)
}

/// The first column of a query.
pub fn column<T: FromSqlOwned>(client: &mut Client, sql: &str) -> Vec<T> {
    let rows = client
        .query(sql, &[])
        .unwrap_or_else(|error| panic!("{sql}: {}", describe(&error)));
    rows.iter().map(|row| row.get(0)).collect()
}

pub fn run(client: &mut Client, sql: &str) {
    client
        .batch_execute(sql)
        .unwrap_or_else(|error| panic!("{sql}: {}", describe(&error)));
}

/// Runs a statement that must be refused with this SQLSTATE, and returns the error for a closer look.
pub fn refusal(client: &mut Client, sql: &str, sqlstate: &str) -> DbError {
    match client.query(sql, &[]) {
        Ok(rows) => panic!(
            "{sql}: must be refused with {sqlstate}, but gave {} rows",
            rows.len()
        ),
        Err(error) => {
            let refused = error
                .as_db_error()
                .unwrap_or_else(|| panic!("{sql}: {error}"))
                .clone();
            assert_eq!(refused.code().code(), sqlstate, "{sql}: {}", describe(&error));
            assert_eq!(
                refused.severity(),
                "ERROR",
                "{sql}: every refusal is a plain error"
            );
            refused
        }
    }
}

pub fn describe(error: &Error) -> String {
    match error.as_db_error() {
        None => error.to_string(),
        Some(db) => format!(
            "{} {} (detail: {}; hint: {})",
            db.code().code(),
            db.message(),
            db.detail().unwrap_or("-"),
            db.hint().unwrap_or("-")
        ),
    }
}
