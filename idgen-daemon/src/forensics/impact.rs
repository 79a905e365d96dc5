//! Which tables and ids something that went wrong may have touched.

use super::in_tables::Databases;
use super::{HolderShown, Looked, in_trail, show_ms};
use crate::config::Config;
use crate::error::{Error, Result};
use crate::postgres::{Session, column};
use idgen_core::clock::UnixMs;
use idgen_core::forensics::{Tenure, tenures};
use idgen_core::format::Format;
use serde::Serialize;

/// Columns that the generator feeds: `$1` which function, `$2` a text that the default must have.
const FED: &str = "
    SELECT f.relation::text, quote_ident(f.column_name), f.expression, f.is_unique
      FROM idgen.fed_columns f
     WHERE $1 = ANY (f.generators::text[]) AND ($2::text IS NULL OR strpos(f.expression, $2) > 0)
     ORDER BY 1, 2";

/// What went wrong.
#[derive(Clone, Debug)]
pub enum ImpactWish {
    /// Ids of an identity were not to be trusted between two moments.
    Identity {
        /// `worker` or `shard`.
        class: String,
        /// Its number.
        number: u64,
        /// From when on.
        from: UnixMs,
        /// Until when.
        to: UnixMs,
        /// In which format; `None`: that of the cell.
        format: Option<String>,
    },
    /// Ids of a tag were not to be trusted.
    Tag {
        /// The tag.
        tag: String,
        /// First id.
        lo: i64,
        /// Last id.
        hi: i64,
    },
}

/// What is to be checked.
#[derive(Clone, Debug, Serialize)]
pub struct Impact {
    /// Of what.
    pub of: String,
    /// Lowest id that it can be about.
    pub lo: i64,
    /// Highest id. Not all that lie between are of it: see `condition`.
    pub hi: i64,
    /// True of the ids that it is about, in SQL; `id` stands for the column.
    pub condition: String,
    /// Who had the identity in that time.
    pub holders: Vec<HolderShown>,
    /// Columns that are fed by the generator.
    pub columns: Vec<Touched>,
    /// Where was looked.
    pub looked: Vec<Looked>,
}

/// A column with such ids.
#[derive(Clone, Debug, Serialize)]
pub struct Touched {
    /// In which database.
    pub database: String,
    /// Which table.
    pub relation: String,
    /// Which column.
    pub column: String,
    /// A unique index would have refused a duplicate.
    pub is_unique: bool,
    /// How many rows it is about; `None`: they were not counted.
    pub rows: Option<i64>,
    /// Shows the rows.
    pub sql: String,
    /// Shows the ids that are there more than once.
    pub duplicates_sql: String,
}

/// What to check after an incident. `count`: count the rows too, which reads tables where the column has no index.
///
/// # Errors
/// The configuration reaches nothing, or the span is none.
pub async fn impact(config: &Config, wish: &ImpactWish, count: bool) -> Result<Impact> {
    let databases = Databases::open(config).await?;
    let mut found = match wish {
        ImpactWish::Identity {
            class,
            number,
            from,
            to,
            format,
        } => {
            let format = format_for(&databases, class, format.as_deref()).await?;
            of_identity(config, (class, *number), (*from, *to), &format).await?
        }
        ImpactWish::Tag { tag, lo, hi } => of_tag(tag, *lo, *hi)?,
    };
    let (generator, text) = match wish {
        ImpactWish::Identity { .. } => ("idgen_snowflake", None),
        ImpactWish::Tag { tag, .. } => ("idgen_segment", Some(quoted(tag))),
    };
    for (database, session) in databases.each() {
        let touched = touched(session, database, (generator, text.as_deref()), &found).await;
        let (looked, columns) = Looked::at(format!("database {database}"), touched, |columns| {
            let outcome = format!("{} columns are fed by {generator}()", columns.len());
            (outcome, columns)
        });
        found.looked.push(looked);
        found.columns.extend(columns.unwrap_or_default());
        if count {
            count_rows(session, database, &mut found).await;
        }
    }
    databases.tell_who_is_away(&mut found.looked);
    Ok(found)
}

async fn format_for(databases: &Databases, class: &str, name: Option<&str>) -> Result<Format> {
    let formats = databases.formats(name).await?;
    let is_shard = class == "shard";
    let found = formats.into_iter().find(|format| format.is_shard == is_shard);
    found.ok_or_else(|| {
        Error::usage(format!("no format of a {class} is known here"))
            .with_hint("name one with --format: SELECT name FROM idgen.formats")
    })
}

async fn of_identity(
    config: &Config,
    (class, number): (&str, u64),
    (from, to): (UnixMs, UnixMs),
    format: &Format,
) -> Result<Impact> {
    if from > to {
        return Err(Error::usage("--from is after --to"));
    }
    if number > format.node_max() {
        return Err(Error::usage(format!(
            "there is no {class} {number} in the format {}: the last one is {}",
            format.name.as_str(),
            format.node_max()
        )));
    }
    let identity = format!("{class} {number}");
    let (looked, steps) = in_trail::read(config, &identity).await;
    let tenures = tenures(&steps.unwrap_or_default());
    let us = |at: UnixMs| {
        i64::try_from(at.0)
            .unwrap_or(i64::MAX / 1_000)
            .saturating_mul(1_000)
    };
    Ok(Impact {
        of: format!(
            "{identity} from {} to {}, format {}",
            show_ms(from),
            show_ms(to),
            format.name.as_str()
        ),
        lo: format.lowest_id_at(us(from)),
        hi: format.highest_id_at(us(to)),
        condition: format!(
            "(id >> {}) & {} = {number}",
            format.node_shift(),
            format.node_max()
        ),
        holders: tenures
            .iter()
            .filter(|tenure| overlaps(tenure, from, to))
            .map(|tenure| HolderShown::of(tenure, "idgen.lease_event"))
            .collect(),
        columns: Vec::new(),
        looked: vec![looked],
    })
}

/// May it have minted a time of that span?
fn overlaps(tenure: &Tenure, from: UnixMs, to: UnixMs) -> bool {
    let begins = tenure
        .above
        .map_or(tenure.granted_at, |above| above.max(tenure.granted_at));
    let ends = tenure.up_to.or(tenure.ended.as_ref().map(|(_, at)| *at));
    begins <= to && ends.is_none_or(|ends| ends >= from)
}

fn of_tag(tag: &str, lo: i64, hi: i64) -> Result<Impact> {
    if lo > hi {
        return Err(Error::usage("--lo is above --hi"));
    }
    Ok(Impact {
        of: format!("ids {lo} to {hi} of the tag {tag}"),
        lo,
        hi,
        condition: "true".to_owned(),
        holders: Vec::new(),
        columns: Vec::new(),
        looked: Vec::new(),
    })
}

/// As a default has it: a literal of SQL.
fn quoted(tag: &str) -> String {
    format!("'{}'", tag.replace('\'', "''"))
}

async fn touched(
    session: &Session,
    database: &str,
    (generator, text): (&str, Option<&str>),
    found: &Impact,
) -> Result<Vec<Touched>> {
    let rows = session
        .rows(FED, &[&generator, &text])
        .await
        .map_err(|error| Error::retry(error.to_string()))?;
    let mut columns = Vec::new();
    for row in &rows {
        let (relation, name): (String, String) = (column(row, 0)?, column(row, 1)?);
        let is_it = condition_for(found, &name);
        columns.push(Touched {
            sql: format!("SELECT * FROM {relation} WHERE {is_it}"),
            duplicates_sql: format!(
                "SELECT {name}, count(*) FROM {relation} WHERE {is_it} GROUP BY {name} HAVING count(*) > 1"
            ),
            database: database.to_owned(),
            relation,
            column: name,
            is_unique: column(row, 3)?,
            rows: None,
        });
    }
    Ok(columns)
}

fn condition_for(found: &Impact, column: &str) -> String {
    let between = format!("{column} BETWEEN {} AND {}", found.lo, found.hi);
    match found.condition.as_str() {
        "true" => between,
        condition => format!("{between} AND {}", condition.replacen("id", column, 1)),
    }
}

/// What cannot be counted is said, and the rest is counted.
async fn count_rows(session: &Session, database: &str, found: &mut Impact) {
    for of in found.columns.iter_mut().filter(|of| of.database == database) {
        let sql = of.sql.replacen("SELECT *", "SELECT count(*)", 1);
        let counted = session.row(&sql, &[]).await;
        match counted.map(|row| row.try_get(0).ok()) {
            Ok(rows) => of.rows = rows,
            Err(error) => found
                .looked
                .push(Looked::failed(format!("{} in {database}", of.relation), error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use idgen_core::format::CLASSIC;

    #[test]
    fn conditions_are_those_of_the_format() {
        let at = UnixMs(1_796_032_800_000);
        let id = CLASSIC
            .compose(idgen_core::format::Parts {
                unix_ms: at,
                region: None,
                version: None,
                node: 5,
                seq: 9,
                is_shard: false,
            })
            .unwrap();
        assert_eq!(id >> CLASSIC.node_shift() & CLASSIC.node_max().cast_signed(), 5);
        let us = at.0.cast_signed() * 1_000;
        assert!((CLASSIC.lowest_id_at(us)..=CLASSIC.highest_id_at(us)).contains(&id));
    }

    #[test]
    fn ids_of_a_tag_are_all_between_its_bounds() {
        let found = of_tag("a", 5, 9).unwrap();
        assert_eq!(condition_for(&found, "\"Id\""), "\"Id\" BETWEEN 5 AND 9");
        assert!(of_tag("a", 9, 5).is_err());
        assert_eq!(quoted("o'clock"), "'o''clock'");
        let workers = Impact {
            condition: "(id >> 12) & 1023 = 5".to_owned(),
            ..found
        };
        assert_eq!(
            condition_for(&workers, "paid"),
            "paid BETWEEN 5 AND 9 AND (paid >> 12) & 1023 = 5"
        );
    }

    #[test]
    fn a_holder_is_named_whose_times_meet_the_span() {
        let tenure = |above: Option<u64>, up_to: Option<u64>| Tenure {
            holder: "a".to_owned(),
            instance: String::new(),
            token: String::new(),
            seq: 1,
            granted_at: UnixMs(100),
            above: above.map(UnixMs),
            up_to: up_to.map(UnixMs),
            ended: None,
        };
        let meets = |tenure: &Tenure| overlaps(tenure, UnixMs(200), UnixMs(300));
        assert!(
            meets(&tenure(None, None))
                && meets(&tenure(Some(300), None))
                && meets(&tenure(Some(0), None))
                && meets(&tenure(None, Some(200)))
        );
        assert!(!meets(&tenure(Some(301), None)) && !meets(&tenure(None, Some(199))));
    }
}
