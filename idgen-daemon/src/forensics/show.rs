//! For people.

use super::{HeldBy, HolderShown, Impact, Looked, Range, Reading, Snowflake, Touched, Verdict, Whois};
use crate::plain_table::plain_table;

/// What is known of an id.
#[must_use]
pub fn whois_text(found: &Whois) -> String {
    let verdict = match found.verdict {
        Verdict::Found => "FOUND",
        Verdict::Finding => "FINDING",
        Verdict::Inconclusive => "INCONCLUSIVE",
    };
    let mut text = format!("{}: {verdict}: {}", found.id, found.reason);
    for reading in &found.readings {
        text.push_str("\n\n");
        text.push_str(&reading_text(reading));
    }
    text.push_str("\n\n");
    text.push_str(&looked_text(&found.looked));
    text
}

fn reading_text(reading: &Reading) -> String {
    match reading {
        Reading::Snowflake(of) => snowflake_text(of),
        Reading::Segment(range) => range_text(range),
        Reading::Uuid { version, at } => lines(
            "uuid",
            &[
                (
                    "version",
                    version.map_or_else(|| "none of RFC 9562".to_owned(), |of| of.to_string()),
                ),
                ("time", at.clone().unwrap_or_else(|| "none in it".to_owned())),
            ],
        ),
        Reading::Public {
            prefix,
            registered,
            not_opened,
        } => lines(
            "public id",
            &[
                ("prefix", prefix.clone()),
                ("registered", or_nowhere(registered)),
                ("as sealed id", format!("not opened: {}", not_opened.join("; "))),
            ],
        ),
        Reading::Sealed { prefix, id, database } => lines(
            "sealed id",
            &[
                ("prefix", prefix.clone()),
                ("id", id.to_string()),
                ("opened in", database.clone()),
            ],
        ),
    }
}

fn or_nowhere(list: &[String]) -> String {
    match list {
        [] => "nowhere here".to_owned(),
        some => some.join("; "),
    }
}

fn snowflake_text(of: &Snowflake) -> String {
    let mut rows = vec![
        ("format", of.format.clone()),
        ("time", of.at.clone()),
        ("identity", format!("{}, sequence {}", of.identity, of.sequence)),
    ];
    if let Some(region) = of.region {
        rows.push(("region", region.to_string()));
    }
    match &of.held {
        HeldBy::Holder(holder) => rows.extend(holder_rows("holder", holder)),
        HeldBy::Probably(holder) => rows.extend(holder_rows("probably", holder)),
        HeldBy::Nobody { before } => {
            rows.push(("holder", "none: no lease covers that time".to_owned()));
            rows.extend(holder_rows("before", before));
        }
        HeldBy::Unknown => rows.push(("holder", "not known: the trail does not reach so far".to_owned())),
    }
    lines("snowflake", &rows)
}

fn holder_rows<'n>(name: &'n str, holder: &HolderShown) -> Vec<(&'n str, String)> {
    vec![
        (
            name,
            format!("{}, run {}, token {}", holder.name, holder.instance, holder.token),
        ),
        (
            "granted",
            format!(
                "{}, event {} of {}",
                holder.granted_at, holder.event, holder.found_in
            ),
        ),
        ("its times", span_text(holder)),
        (
            "ended",
            holder
                .ended
                .clone()
                .unwrap_or_else(|| "not as far as is known".to_owned()),
        ),
    ]
}

fn span_text(holder: &HolderShown) -> String {
    let unknown = || "not known".to_owned();
    format!(
        "above {}, up to {}",
        holder.above.clone().unwrap_or_else(unknown),
        holder.up_to.clone().unwrap_or_else(unknown)
    )
}

fn range_text(range: &Range) -> String {
    let mut rows = vec![
        ("tag", format!("{} of space {}", range.tag, range.space)),
        ("event", range.event.clone()),
        ("ids", format!("{} to {}", range.lo, range.hi)),
        ("time", range.at.clone()),
        (
            "issuer",
            format!("source {}, event {}", range.source, range.event_id),
        ),
        (
            "authority",
            range.token.clone().unwrap_or_else(|| "local".to_owned()),
        ),
        ("found in", range.found_in.clone()),
    ];
    if let Some(tx) = &range.tx {
        rows.insert(5, ("transaction", tx.clone()));
    }
    lines("segment", &rows)
}

fn lines(title: &str, rows: &[(&str, String)]) -> String {
    let mut text = title.to_owned();
    for (name, value) in rows {
        text.push_str(&format!("\n  {name:<12} {value}"));
    }
    text
}

fn looked_text(looked: &[Looked]) -> String {
    let rows: Vec<_> = looked
        .iter()
        .map(|of| {
            let failed = if of.failed { "did not answer: " } else { "" };
            (of.place.as_str(), format!("{failed}{}", of.outcome))
        })
        .collect();
    let width = rows
        .iter()
        .map(|(place, _)| place.chars().count())
        .max()
        .unwrap_or(0);
    let mut text = "looked in".to_owned();
    for (place, outcome) in rows {
        text.push_str(&format!("\n  {place:<width$}  {outcome}"));
    }
    text
}

/// What is to be checked.
#[must_use]
pub fn impact_text(found: &Impact) -> String {
    let mut text = format!("{}: ids {} to {}", found.of, found.lo, found.hi);
    if found.condition != "true" {
        text.push_str(&format!(", where {}", found.condition));
    }
    for holder in &found.holders {
        text.push('\n');
        text.push_str(&lines("", &holder_rows("holder", holder)));
    }
    text.push_str("\n\n");
    text.push_str(&columns_text(&found.columns));
    for of in &found.columns {
        text.push_str(&format!(
            "\n\n-- in {}\n{};\n{};",
            of.database, of.sql, of.duplicates_sql
        ));
    }
    text.push_str("\n\n");
    text.push_str(&looked_text(&found.looked));
    text
}

fn columns_text(columns: &[Touched]) -> String {
    if columns.is_empty() {
        return "no column is fed by that generator: ids may have been drawn by functions and programs"
            .to_owned();
    }
    let mut table = plain_table();
    table.set_header(["database", "table", "column", "unique index", "rows"]);
    for of in columns {
        table.add_row([
            of.database.clone(),
            of.relation.clone(),
            of.column.clone(),
            if of.is_unique { "yes" } else { "no" }.to_owned(),
            of.rows
                .map_or_else(|| "not counted".to_owned(), |rows| rows.to_string()),
        ]);
    }
    table.to_string()
}
