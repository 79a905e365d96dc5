//! The pages of an index, or the parts of all values.

use super::{Column, NAMED_MAX, failed};
use crate::error::Result;
use crate::postgres::{Session, column};
use serde::Serialize;
use tokio_postgres::types::ToSql;

/// Of a table without an index a part has at most about so many bytes of rows: the values of them fit into memory.
const PART_BYTES: i64 = 1 << 30;
/// Parts at the most; then parts are larger, and the server uses files for them.
const PARTS_MAX: u64 = 256;

/// A value that is there more than once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Twice {
    /// It, as text.
    pub value: String,
    /// So often.
    pub times: i64,
}

/// What a page or part has.
#[derive(Debug, Default)]
pub(super) struct FoundTwice {
    /// The first of them: a table that was loaded twice has nothing else.
    pub(super) named: Vec<Twice>,
    /// All of them.
    pub(super) count: u64,
}

/// Where it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// Behind this value of the index.
    Pages {
        /// `None`: at the beginning.
        after: Option<String>,
        /// Rows of a page.
        page: i64,
        /// Pages that were read.
        done: u64,
        /// There is nothing behind.
        is_over: bool,
    },
    /// Before this part of all values.
    Parts {
        /// From 0.
        next: u64,
        /// A power of two.
        of: u64,
    },
}

impl Place {
    pub(super) fn pages(after: Option<String>, page: i64) -> Self {
        Self::Pages {
            after,
            page,
            done: 0,
            is_over: false,
        }
    }

    /// `known`: an earlier run's part and how many there were. The table may have grown: a part is of the same values still.
    pub(super) fn parts(known: Option<(u64, u64)>, bytes: i64) -> Self {
        let wanted = u64::try_from(bytes / PART_BYTES + 1).unwrap_or(1);
        let (next, of) = known.unwrap_or((0, wanted.next_power_of_two().min(PARTS_MAX)));
        Self::Parts { next, of }
    }

    pub(super) const fn done(&self) -> u64 {
        match self {
            Self::Pages { done, .. } => *done,
            Self::Parts { next, .. } => *next,
        }
    }

    /// Of pages nobody knows.
    pub(super) const fn parts_in_all(&self) -> u64 {
        match self {
            Self::Pages { done, .. } => *done,
            Self::Parts { of, .. } => *of,
        }
    }

    /// What is there twice in the next page or part; `None`: it is over.
    pub(super) async fn next(&mut self, session: &Session, of: &Column) -> Result<Option<FoundTwice>> {
        match self {
            Self::Pages { is_over: true, .. } => Ok(None),
            Self::Pages {
                after,
                page,
                done,
                is_over,
            } => {
                let (found, last) = next_page(session, of, (after.as_deref(), *page)).await?;
                *is_over = last.is_none();
                *after = last.or_else(|| after.take());
                *done += 1;
                Ok(Some(found))
            }
            Self::Parts { next, of: parts } if *next == *parts => Ok(None),
            Self::Parts { next, of: parts } => {
                let found = next_part(session, of, (*next, *parts)).await?;
                *next += 1;
                Ok(Some(found))
            }
        }
    }
}

/// Up to the last value of so many rows, and all rows that have that value: what is equal is on one page. Returns that value.
async fn next_page(
    session: &Session,
    of: &Column,
    (after, page): (Option<&str>, i64),
) -> Result<(FoundTwice, Option<String>)> {
    let Column {
        relation,
        quoted,
        type_name,
        ..
    } = of;
    let behind = after.map_or_else(String::new, |_| format!("AND {quoted} > $1::text::{type_name}"));
    let mut params: Vec<&(dyn ToSql + Sync)> = after.iter().map(|after| after as _).collect();
    let end = format!(
        "SELECT v::text FROM (SELECT {quoted} AS v FROM {relation} WHERE {quoted} IS NOT NULL {behind}
                               ORDER BY {quoted} LIMIT {page}) p ORDER BY v DESC LIMIT 1"
    );
    let rows = session
        .rows(&end, &params)
        .await
        .map_err(|error| failed(&error))?;
    let Some(row) = rows.first() else {
        return Ok((FoundTwice::default(), None));
    };
    let last: String = column(row, 0)?;
    params.push(&last);
    let rows = format!("{quoted} <= ${}::text::{type_name} {behind}", params.len());
    let found = twice_in(session, of, &rows, &params).await?;
    Ok((found, Some(last)))
}

async fn next_part(session: &Session, of: &Column, (part, parts): (u64, u64)) -> Result<FoundTwice> {
    let quoted = &of.quoted;
    let rows = format!(
        "{quoted} IS NOT NULL AND hash_record_extended(ROW({quoted}), 0) & {} = {part}",
        parts - 1
    );
    twice_in(session, of, &rows, &[]).await
}

/// Values that are there more than once in these rows.
async fn twice_in(
    session: &Session,
    of: &Column,
    rows: &str,
    params: &[&(dyn ToSql + Sync)],
) -> Result<FoundTwice> {
    let Column { relation, quoted, .. } = of;
    let sql = format!(
        "SELECT {quoted}::text, count(*), count(*) OVER () FROM {relation} WHERE {rows}
          GROUP BY {quoted} HAVING count(*) > 1 ORDER BY {quoted} LIMIT {NAMED_MAX}"
    );
    let rows = session.rows(&sql, params).await.map_err(|error| failed(&error))?;
    let count = rows.first().map(|row| column::<i64>(row, 2)).transpose()?;
    Ok(FoundTwice {
        named: rows.iter().map(twice).collect::<Result<_>>()?,
        count: count.unwrap_or_default().unsigned_abs(),
    })
}

fn twice(row: &tokio_postgres::Row) -> Result<Twice> {
    Ok(Twice {
        value: column(row, 0)?,
        times: column(row, 1)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_read_as_often_as_it_is_large_and_an_earlier_cut_is_kept() {
        let of = |bytes| Place::parts(None, bytes).parts_in_all();
        assert_eq!(
            (of(0), of(PART_BYTES - 1), of(PART_BYTES), of(5 * PART_BYTES)),
            (1, 1, 2, 8)
        );
        assert_eq!(of(i64::MAX), PARTS_MAX);
        let known = Place::parts(Some((3, 4)), 100 * PART_BYTES);
        assert_eq!((known.done(), known.parts_in_all()), (3, 4));
    }
}
