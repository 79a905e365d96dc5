//! `idgen_release_sequence()`: the reverse. The sequence goes on above everything that the tag has granted, and the tag
//! ends.

use super::locks::Locks;
use super::look::{self, Column};
use super::record::{self, Adopted};
use super::{Line, literal};
use crate::error::Error;
use crate::owner::{Pinned, commit_durably};
use crate::segment::catalog::{Found, find_to_change};
use crate::segment::{leaf, manage, own};
use crate::shmem::shared;
use crate::{clock, guc};
use idgen_core::segment::adopt::{Width, goes_on, widened};
use idgen_core::segment::authority::Stretch;
use pgrx::pg_sys;
use pgrx::prelude::*;
use pgrx::spi::SpiClient;

fn refuse(tag: &str, detail: String, hint: &'static str) -> Error {
    Error::NotReleasable {
        tag: tag.into(),
        detail,
        hint,
    }
}

const GONE: &str = "Give the columns another default, and end the tag with idgen_drop_segment('tag').";

/// What is to be put back, under locks.
struct Plan {
    adopted: Adopted,
    /// As SQL needs it.
    sequence: String,
    /// The sequence that stands still; `None`: an identity, whose sequence is made anew.
    standing: Option<pg_sys::Oid>,
    /// Type of the sequence that goes on.
    width: Width,
    columns: Vec<Column>,
}

impl Plan {
    /// Type and highest value of the sequence that goes on above `floor`.
    fn bounds(&self, floor: i64) -> (Width, i64) {
        if self.adopted.max != self.adopted.width.max() {
            return (self.width, self.adopted.max);
        }
        // Whoever has widened the column or the sequence meanwhile has widened the maximum that nobody had chosen.
        let widths = self.columns.iter().filter_map(|column| column.width);
        let narrowest = widths.min_by_key(|width| width.max());
        let width = widened(self.width, narrowest.unwrap_or(self.width), floor);
        (width, width.max())
    }

    /// The column that gets the identity.
    fn root(&self) -> Option<&Column> {
        self.columns.iter().find(|column| column.is_root)
    }
}

pub fn release(tag: &str, user: pg_sys::Oid) -> Result<Vec<Line>, Error> {
    let found = find_to_change(tag, user)?;
    if !found.identity.stripes.is_single() {
        return Err(refuse(
            tag,
            "This database shares its space with other masters, and a sequence does not know which ids are theirs.".into(),
            "Leave the space first (idgenctl stripes leave), or give the columns another default.",
        ));
    }
    leaf::ensure(tag, found.tables)?;
    commit_durably();
    let _pinned = Pinned::for_alterations();
    let plan = locked_plan(&found, user)?;
    // Only now: whoever inserts may be waiting for a range, and none is granted under the lock of the row.
    let granted = manage::lock_floor(&found)?.max(lease_floor(&found)?);
    let floor = Spi::connect_mut(|client| floor(client, &plan, granted))?;
    record::forget(&found, &plan.adopted, floor, &plan.columns)?;
    manage::end_tag(&found)?;
    Spi::connect_mut(|client| {
        let next = alter(client, &plan, floor)?;
        describe(client, &found, &plan, &next)
    })
}

/// With a leased authority others may have granted what the row knows nothing of, up to the floor of the lease that
/// this server has; with a local one: 0.
fn lease_floor(found: &Found) -> Result<i64, Error> {
    if guc::authority() == guc::Authority::Local || own::has_made(found.segment_id) {
        return Ok(0);
    }
    let stretch = shared().and_then(|shared| {
        let slot = shared.segment_in_use(&found.key())?;
        shared.permit(slot, clock::boot()).map(|permit| permit.stretch)
    });
    let stretch = stretch.filter(|stretch| *stretch != Stretch::default());
    stretch.map(|stretch| stretch.floor).ok_or_else(|| {
        refuse(
            &found.tag,
            "The authority is leased, and the tag was not used under the lease that this server has now, if it has one."
                .into(),
            "Use it once, so that it passes over what others may have granted: SELECT idgen_segment('tag').",
        )
    })
}

fn locked_plan(found: &Found, user: pg_sys::Oid) -> Result<Plan, Error> {
    super::check_isolation(&found.tag, refuse)?;
    let mut locks = Locks::none();
    loop {
        let (adopted, must_burn) = record::find(found)?.ok_or_else(|| {
            refuse(
                &found.tag,
                "It has not taken the place of a sequence.".into(),
                "A tag that idgen_create_segment() has made is ended with idgen_drop_segment('tag').",
            )
        })?;
        if must_burn {
            return Err(refuse(
                &found.tag,
                "More may have been granted than its row knows: it was restored, or the server was promoted or upgraded, and the tag was not used since.".into(),
                "Use it once, so that it passes over its safety burn: SELECT idgen_segment('tag').",
            ));
        }
        let plan = Spi::connect_mut(|client| plan(client, found, adopted, user))?;
        let relations = Spi::connect_mut(|client| {
            look::relations(client, &plan.columns, plan.standing, &found.tag, refuse)
        })?;
        if locks.are_on(&relations) {
            return Ok(plan);
        }
        pgrx::check_for_interrupts!();
        locks.move_to(&relations);
    }
}

fn plan(
    client: &mut SpiClient<'_>,
    found: &Found,
    adopted: Adopted,
    user: pg_sys::Oid,
) -> Result<Plan, Error> {
    let columns = look::tagged_columns(client, &found.tag, user, refuse)?;
    let (sequence, standing, width) = if adopted.identity.is_some() {
        let (sequence, width) = identity_of(&found.tag, &adopted, &columns)?;
        (sequence, None, width)
    } else {
        let sequence = standing(client, found, &adopted, user)?;
        (sequence.name, Some(sequence.oid), sequence.width)
    };
    Ok(Plan {
        width,
        adopted,
        sequence,
        standing,
        columns,
    })
}

/// The sequence that stands still since the adoption.
fn standing(
    client: &mut SpiClient<'_>,
    found: &Found,
    adopted: &Adopted,
    user: pg_sys::Oid,
) -> Result<look::Sequence, Error> {
    let sequence = look::sequence(client, adopted.sequence_oid, user, refuse);
    sequence.map_err(|error| match error {
        Error::NoSequence { .. } => refuse(
            &found.tag,
            format!(
                "There is no sequence {}.{} any more.",
                adopted.schema, adopted.name
            ),
            GONE,
        ),
        other => other,
    })
}

/// Name and type of the sequence that the identity will have: the old name, in the schema of the table now.
fn identity_of(tag: &str, adopted: &Adopted, columns: &[Column]) -> Result<(String, Width), Error> {
    let mut roots = columns.iter().filter(|column| column.is_root);
    let (Some(root), None) = (roots.next(), roots.next()) else {
        return Err(refuse(
            tag,
            format!(
                "It was the identity of one column, and there are {} that have it as their default.",
                columns.iter().filter(|column| column.is_root).count()
            ),
            "Give the column that shall be the identity idgen_segment('tag') as its default, and no other one.",
        ));
    };
    let width = root.width.ok_or_else(|| {
        refuse(
            tag,
            format!(
                "Column {} of {} is of type {}.",
                root.name, root.table, root.type_name
            ),
            "An identity is smallint, integer or bigint.",
        )
    })?;
    let name = spi::quote_qualified_identifier(&root.schema, &adopted.name);
    Ok((name, width))
}

/// Above what was granted, what the columns hold, and what the sequence says it has come to.
fn floor(client: &mut SpiClient<'_>, plan: &Plan, granted: i64) -> Result<i64, Error> {
    let mut floor = granted.max(plan.adopted.floor);
    for column in &plan.columns {
        floor = floor.max(look::highest(client, column)?.unwrap_or(0));
    }
    if plan.standing.is_some() {
        let query = format!("SELECT last_value FROM {}", plan.sequence);
        let last_value = client.update(&query, None, &[])?.first().get::<i64>(1)?;
        floor = floor.max(last_value.unwrap_or(0));
    }
    Ok(floor)
}

/// Puts the defaults or the identity back, and says where the sequence goes on.
fn alter(client: &mut SpiClient<'_>, plan: &Plan, floor: i64) -> Result<String, Error> {
    let Adopted {
        start, min, cache, ..
    } = plan.adopted;
    let sequence = &plan.sequence;
    let (width, max) = plan.bounds(floor);
    let name = literal(sequence);
    let mut statements = Vec::new();
    let default = match plan.standing {
        Some(_) => format!("SET DEFAULT nextval({name})"),
        None => "DROP DEFAULT".into(),
    };
    for column in &plan.columns {
        statements.push(format!(
            "ALTER TABLE ONLY {} ALTER COLUMN {} {default}",
            column.table, column.name
        ));
    }
    if let (Some(identity), Some(root)) = (plan.adopted.identity, plan.root()) {
        statements.push(format!(
            "ALTER TABLE {} ALTER COLUMN {} ADD GENERATED {} AS IDENTITY (SEQUENCE NAME {sequence} CACHE {cache})",
            root.table,
            root.name,
            identity.as_sql()
        ));
    }
    let (last, used_up) = goes_on(floor, min, max);
    statements.push(format!(
        "ALTER SEQUENCE {sequence} AS {} MINVALUE {min} MAXVALUE {max} START {start} RESTART {last}",
        look::type_of(width)
    ));
    if used_up {
        // Undone by a rollback together with the file that RESTART has made.
        statements.push(format!("SELECT setval({name}, {last}, true)"));
    }
    for statement in &statements {
        client.update(statement.as_str(), None, &[])?;
    }
    Ok(if used_up {
        format!("is used up: it ends at {last}")
    } else {
        format!("goes on at {last}")
    })
}

fn describe(client: &mut SpiClient<'_>, found: &Found, plan: &Plan, next: &str) -> Result<Vec<Line>, Error> {
    let mut lines = vec![Line::on("tag", found.tag.as_str(), "ended")];
    lines.extend(plan.columns.iter().map(|column| {
        let note = match plan.adopted.identity {
            Some(identity) if column.is_root => format!("is GENERATED {} AS IDENTITY", identity.as_sql()),
            Some(_) => "the default is gone, the parent has the identity".into(),
            None => format!("the default is nextval({})", literal(&plan.sequence)),
        };
        Line::of("column", column, note)
    }));
    lines.push(Line::on("sequence", plan.sequence.as_str(), next));
    for column in &plan.columns {
        lines.extend(look::references(client, column)?);
    }
    Ok(lines)
}
