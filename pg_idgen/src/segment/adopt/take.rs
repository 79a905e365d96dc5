//! `idgen_adopt_sequence()`.

use super::locks::Locks;
use super::look::{self, Column, Identity, Sequence};
use super::{Line, literal, record};
use crate::error::Error;
use crate::owner::{Pinned, Tables, commit_durably};
use crate::segment::catalog;
use crate::segment::leaf;
use crate::segment::manage::{self, NewTag};
use idgen_core::segment::adopt::{self, Adoption, Width};
use pgrx::pg_sys;
use pgrx::prelude::*;
use pgrx::spi::SpiClient;

/// Ids per grant where there are 32,767 in all: a restart burns what is left of a range.
const SMALL_STEP: (i32, i32) = (10, 100);
const STEP: (i32, i32) = (1_000, 10_000);

fn refuse(sequence: &str, detail: String, hint: &'static str) -> Error {
    Error::SequenceNotAdoptable {
        sequence: sequence.into(),
        detail,
        hint,
    }
}

/// What is to be moved, under locks.
struct Plan {
    sequence: Sequence,
    columns: Vec<Column>,
}

impl Plan {
    /// The column that the sequence is a part of.
    fn identity(&self) -> Option<(&Column, Identity)> {
        self.columns
            .iter()
            .find(|column| column.is_root && column.identity.is_some())
            .and_then(|column| Some((column, column.identity?)))
    }
}

pub fn adopt(sequence: pg_sys::Oid, tag: &str, user: pg_sys::Oid) -> Result<Vec<Line>, Error> {
    let tables = Tables::of_this_database().ok_or_else(|| Error::Internal {
        message: "table idgen.segment is missing".into(),
    })?;
    // Before anything is locked, because it may have to wait for a worker.
    leaf::ensure(tag, tables)?;
    commit_durably();
    let _pinned = Pinned::for_alterations();
    let plan = locked_plan(sequence, user)?;
    let adoption = Spi::connect_mut(|client| bounds(client, &plan))?;
    let identity = catalog::identity(tables)?;
    let above = catalog::above(tables)?;
    if !identity.stripes.is_single() && adoption.floor > above {
        return Err(refuse(
            &plan.sequence.name,
            format!(
                "It has come to {}, and this database shares its space with other masters: ids above {above} may be theirs.",
                adoption.floor
            ),
            "Sequences are adopted before their database joins others, by the first of them.",
        ));
    }
    let (step, max_step) = if adoption.limit_id <= Width::Small.max() {
        SMALL_STEP
    } else {
        STEP
    };
    let new = NewTag {
        tag: tag.into(),
        start_id: adoption.floor + 1,
        limit_id: adoption.limit_id,
        step,
        max_step,
        fetch_limit: None,
    };
    // Whoever owned the sequence goes on to own what it has become.
    manage::create(&new, plan.sequence.owner)?;
    let adopted = record::Adopted {
        sequence_oid: plan.sequence.oid,
        schema: plan.sequence.schema.clone(),
        name: plan.sequence.bare_name.clone(),
        identity: plan.identity().map(|(_, identity)| identity),
        width: plan.sequence.width,
        start: plan.sequence.start,
        min: plan.sequence.min,
        max: plan.sequence.max,
        cache: plan.sequence.cache,
        floor: adoption.floor,
    };
    let lent = record::keep(tables, tag, identity, &adopted, &plan.columns)?;
    Spi::connect_mut(|client| {
        alter(client, tag, &plan)?;
        describe(client, &new, &plan, lent)
    })
}

/// Looks, locks what it has seen, and looks again, until both are the same.
fn locked_plan(sequence: pg_sys::Oid, user: pg_sys::Oid) -> Result<Plan, Error> {
    let mut locks = Locks::none();
    loop {
        let (plan, relations) = Spi::connect_mut(|client| {
            let sequence = look::sequence(client, sequence, user, refuse)?;
            super::check_isolation(&sequence.name, refuse)?;
            let columns = look::drawing_columns(client, &sequence, user, refuse)?;
            let plan = Plan { sequence, columns };
            check(client, &plan)?;
            let name = &plan.sequence.name;
            let relations = look::relations(client, &plan.columns, Some(plan.sequence.oid), name, refuse)?;
            Ok::<_, Error>((plan, relations))
        })?;
        if locks.are_on(&relations) {
            return Ok(plan);
        }
        pgrx::check_for_interrupts!();
        locks.move_to(&relations);
    }
}

/// What can be said without the numbers.
fn check(client: &mut SpiClient<'_>, plan: &Plan) -> Result<(), Error> {
    let refuse = |detail: String, hint| Err(refuse(&plan.sequence.name, detail, hint));
    if plan.columns.is_empty() {
        return refuse(
            "No column draws from it by identity or by a default.".into(),
            "A tag for programs that call nextval() themselves is made by idgen_create_segment('tag', start_id => ...).",
        );
    }
    if let Some(column) = plan.columns.iter().find(|column| !column.is_plain) {
        return refuse(
            format!(
                "The default of column {} of {} is more than a call of nextval().",
                column.name, column.table
            ),
            "Change that default first: it can have idgen_segment('tag') in the place of nextval() once the tag is there.",
        );
    }
    if let Some(column) = plan.columns.iter().find(|column| column.width.is_none()) {
        return refuse(
            format!(
                "Column {} of {} is of type {}.",
                column.name, column.table, column.type_name
            ),
            "Columns of smallint, integer and bigint can be moved.",
        );
    }
    if let Some((own, _)) = plan.identity()
        && let Some(other) = plan.columns.iter().find(|column| column.identity.is_none())
    {
        return refuse(
            format!(
                "It is the identity of column {} of {}, and column {} of {} draws from it too.",
                own.name, own.table, other.name, other.table
            ),
            "Take that default away first, and give it idgen_segment('tag') afterwards.",
        );
    }
    match look::other_dependent(client, &plan.sequence)? {
        Some(other) => refuse(
            format!("It is also used by {other}."),
            "Change that first: nextval() is an error afterwards.",
        ),
        None => Ok(()),
    }
}

/// Reads the numbers: nobody draws or writes any more.
fn bounds(client: &mut SpiClient<'_>, plan: &Plan) -> Result<Adoption, Error> {
    let Plan { sequence, columns } = plan;
    let query = format!("SELECT last_value, is_called FROM {}", sequence.name);
    let row = client.update(&query, None, &[])?.first();
    let drawn = adopt::Sequence {
        width: sequence.width,
        max: sequence.max,
        increment: sequence.increment,
        cycles: sequence.cycles,
        last_value: row.get::<i64>(1)?.unwrap_or(i64::MAX),
        is_called: row.get::<bool>(2)?.unwrap_or(true),
    };
    let columns: Vec<adopt::Column> = columns
        .iter()
        .map(|column| {
            Ok(adopt::Column {
                width: column.width.unwrap_or(Width::Small),
                highest: look::highest(client, column)?,
            })
        })
        .collect::<Result<_, Error>>()?;
    adopt::adoption(&drawn, &columns).map_err(|unfit| {
        let hint = match unfit {
            adopt::Unfit::NoneLeft { .. } => {
                "Widen the column, or raise the MAXVALUE of the sequence, first."
            }
            _ => "",
        };
        refuse(&sequence.name, format!("Reason: {unfit}."), hint)
    })
}

fn alter(client: &mut SpiClient<'_>, tag: &str, plan: &Plan) -> Result<(), Error> {
    let mut statements = Vec::new();
    if let Some((column, _)) = plan.identity() {
        // Takes the sequence along, and the identities of partitions.
        statements.push(format!(
            "ALTER TABLE {} ALTER COLUMN {} DROP IDENTITY",
            column.table, column.name
        ));
    }
    let call = format!("{}({})", record::generator(client)?, literal(tag));
    for column in &plan.columns {
        statements.push(format!(
            "ALTER TABLE ONLY {} ALTER COLUMN {} SET DEFAULT {call}",
            column.table, column.name
        ));
    }
    if plan.identity().is_none() {
        let (name, at) = (&plan.sequence.name, adopt::STANDS_AT);
        // RESTART gives it another file, so that what sessions have cached of it is void and a rollback
        // brings the old file back; hence setval(), which no rollback undoes, is undone with it.
        statements.push(format!(
            "ALTER SEQUENCE {name} MINVALUE {} MAXVALUE {at} START {at} RESTART {at} NO CYCLE",
            at - 1
        ));
        statements.push(format!("SELECT setval({}, {at}, true)", literal(name)));
    }
    for statement in &statements {
        client.update(statement.as_str(), None, &[])?;
    }
    Ok(())
}

fn describe(
    client: &mut SpiClient<'_>,
    new: &NewTag,
    plan: &Plan,
    lent: Vec<String>,
) -> Result<Vec<Line>, Error> {
    let mut lines = vec![Line::on(
        "tag",
        new.tag.as_str(),
        format!("begins at {}, ends at {}", new.start_id, new.limit_id),
    )];
    let name = plan.sequence.name.as_str();
    lines.extend(plan.columns.iter().map(|column| {
        let note = match column.identity {
            Some(identity) => format!("was GENERATED {} AS IDENTITY", identity.as_sql()),
            None => format!("the default was nextval({})", literal(name)),
        };
        Line::of("column", column, note)
    }));
    lines.push(match plan.identity() {
        Some(_) => Line::on("sequence", name, "dropped with the identity"),
        None => Line::on(
            "sequence",
            name,
            format!("stands still at {}: nextval() is error 2200H", adopt::STANDS_AT),
        ),
    });
    lines.extend(
        lent.into_iter()
            .map(|role| Line::on("right", role, "may draw from the tag")),
    );
    for column in &plan.columns {
        lines.extend(look::references(client, column)?);
    }
    Ok(lines)
}
