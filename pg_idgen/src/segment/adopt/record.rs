//! What the extension keeps of an adoption: the definition of the sequence, the rights on it, the event.

use super::look::{Column, Identity, type_of, width_of};
use crate::authority::settle;
use crate::error::Error;
use crate::owner::{AsOwner, Tables};
use crate::segment::catalog;
use crate::segment::catalog::Found;
use idgen_core::segment::adopt::Width;
use pgrx::pg_sys;
use pgrx::prelude::*;
use pgrx::spi::SpiClient;

/// What the reverse needs.
pub struct Adopted {
    pub sequence_oid: pg_sys::Oid,
    /// Not quoted, as `name`.
    pub schema: String,
    pub name: String,
    /// `None`: it was the default of columns.
    pub identity: Option<Identity>,
    pub width: Width,
    pub start: i64,
    pub min: i64,
    pub max: i64,
    pub cache: i64,
    /// What the tag began above.
    pub floor: i64,
}

/// `idgen_segment`, with its schema where it needs one.
const GENERATOR: &str = "
    SELECT p.oid::regproc::text
      FROM pg_extension x
      JOIN pg_depend m ON m.refclassid = 'pg_extension'::regclass AND m.refobjid = x.oid AND m.deptype = 'e' AND m.classid = 'pg_proc'::regclass
      JOIN pg_proc p ON p.oid = m.objid AND p.proname = 'idgen_segment'
     WHERE x.extname = 'pg_idgen'";

/// A row of the name may be left from a tag that was dropped.
const KEEP: &str = "
    INSERT INTO idgen.adopted_sequence AS a (tag, sequence_schema, sequence_name, sequence_oid, space_id, identity, data_type,
                                             start_value, min_value, max_value, cache_size, floor)
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)
    ON CONFLICT (tag) DO UPDATE
       SET sequence_schema = $2, sequence_name = $3, sequence_oid = $4, space_id = $5, identity = $6, data_type = $7,
           start_value = $8, min_value = $9, max_value = $10, cache_size = $11, floor = $12,
           adopted_by = session_user, adopted_at = clock_timestamp()";

/// Whoever could draw from the sequence may draw from the tag: by a right on the sequence, or, since an identity asks
/// for none, by the right to insert into the table ($4: its oids). Those who own a table too, and those who may
/// write everything.
const LEND: &str = "
    WITH entitled AS (
        SELECT x.grantee FROM pg_class c CROSS JOIN aclexplode(c.relacl) x
         WHERE c.oid = $3 AND x.privilege_type IN ('USAGE', 'UPDATE')
         UNION
        SELECT x.grantee FROM pg_class c CROSS JOIN aclexplode(c.relacl) x
         WHERE $5 AND c.oid = ANY ($4) AND x.privilege_type = 'INSERT'
         UNION
        SELECT x.grantee FROM pg_attribute a CROSS JOIN aclexplode(a.attacl) x
         WHERE $5 AND a.attrelid = ANY ($4) AND x.privilege_type = 'INSERT'
         UNION
        SELECT c.relowner FROM pg_class c WHERE c.oid = ANY ($4)
         UNION
        SELECT r.oid FROM pg_roles r WHERE r.rolname = 'pg_write_all_data'
    )
    INSERT INTO idgen.segment_grant (tag, grantee, grantee_oid, role_space, granted_by)
    SELECT $1, coalesce(r.rolname, 'public'), r.oid, $2, session_user
      FROM entitled e LEFT JOIN pg_roles r ON r.oid = e.grantee JOIN idgen.segment s ON s.tag = $1
     WHERE (e.grantee = 0 OR r.oid IS NOT NULL) AND r.oid IS DISTINCT FROM s.owner_oid
    RETURNING grantee::text COLLATE \"C\"";

/// $4: the kind of event.
const RECORD: &str = "
    WITH counted AS (
        UPDATE idgen.segment s SET tag_seq = s.tag_seq + 1 WHERE s.tag = $3 RETURNING s.tag_seq, s.segment_id)
    INSERT INTO idgen.audit_event (source_id, space_id, kind, tag, tag_seq, payload)
    SELECT $1, $2, $4, $3, c.tag_seq,
           jsonb_build_object('segment_id', c.segment_id, 'sequence', $5, 'floor', $6, 'columns', to_jsonb($7),
                              'identity', $8, 'session_user', session_user)
      FROM counted c";

const FIND: &str = "
    SELECT CASE WHEN a.space_id = p.space_id THEN a.sequence_oid ELSE to_regclass(format('%I.%I', a.sequence_schema, a.sequence_name))::oid END,
           a.sequence_schema::text, a.sequence_name::text, a.identity, a.data_type, a.start_value, a.min_value, a.max_value,
           a.cache_size, a.floor, NOT s.needs_burn AND s.mark IS NOT DISTINCT FROM h.mark
      FROM idgen.adopted_sequence a JOIN idgen.segment s ON s.tag = a.tag CROSS JOIN idgen.space p CROSS JOIN idgen.authority h
     WHERE a.tag = $1";

const FORGET: &str = "DELETE FROM idgen.adopted_sequence a WHERE a.tag = $1";

pub fn generator(client: &mut SpiClient<'_>) -> Result<String, Error> {
    let name = client.update(GENERATOR, None, &[])?.first().get::<String>(1)?;
    name.ok_or_else(|| Error::Internal {
        message: "function idgen_segment(text) is missing".into(),
    })
}

/// Writes down what was adopted, lends the tag to whoever could draw, and returns who that is.
pub fn keep(
    tables: Tables,
    tag: &str,
    identity: catalog::Identity,
    adopted: &Adopted,
    columns: &[Column],
) -> Result<Vec<String>, Error> {
    let _as_owner = AsOwner::begin(tables.owner);
    Spi::connect_mut(|client| {
        let space_id = pgrx::Uuid::from_bytes(identity.space_id);
        let letter = adopted.identity.map(Identity::as_letter);
        let row = [
            tag.into(),
            adopted.schema.as_str().into(),
            adopted.name.as_str().into(),
            adopted.sequence_oid.into(),
            space_id.into(),
            letter.into(),
            type_of(adopted.width).into(),
            adopted.start.into(),
            adopted.min.into(),
            adopted.max.into(),
            adopted.cache.into(),
            adopted.floor.into(),
        ];
        client.update(KEEP, None, &row)?;
        let relations: Vec<pg_sys::Oid> = columns.iter().map(|column| column.relation).collect();
        let rights = [
            tag.into(),
            space_id.into(),
            adopted.sequence_oid.into(),
            relations.into(),
            adopted.identity.is_some().into(),
        ];
        let lent = client.update(LEND, None, &rights)?;
        let mut lent: Vec<String> = lent
            .map(|row| Ok(row.get::<String>(1)?.unwrap_or_default()))
            .collect::<Result<_, Error>>()?;
        lent.sort_unstable();
        write_event(
            client,
            "segment.adopt",
            tag,
            identity,
            adopted,
            adopted.floor,
            columns,
        )?;
        Ok(lent)
    })
}

fn write_event(
    client: &mut SpiClient<'_>,
    kind: &str,
    tag: &str,
    identity: catalog::Identity,
    adopted: &Adopted,
    floor: i64,
    columns: &[Column],
) -> Result<(), Error> {
    let names: Vec<String> = columns
        .iter()
        .map(|column| format!("{}.{}", column.table, column.name))
        .collect();
    let event = [
        pgrx::Uuid::from_bytes(identity.source_id).into(),
        pgrx::Uuid::from_bytes(identity.space_id).into(),
        tag.into(),
        kind.into(),
        format!("{}.{}", adopted.schema, adopted.name).into(),
        floor.into(),
        names.into(),
        adopted.identity.is_some().into(),
    ];
    client.update(RECORD, None, &event)?;
    Ok(())
}

/// What a tag has adopted, and whether more may have been granted than its row knows; `None`: nothing.
pub fn find(found: &Found) -> Result<Option<(Adopted, bool)>, Error> {
    let _as_owner = AsOwner::begin(found.tables.owner);
    Spi::connect_mut(|client| {
        let Some(row) = client.update(FIND, None, &[found.tag.as_str().into()])?.next() else {
            return Ok(None);
        };
        let damaged = || Error::Internal {
            message: "table idgen.adopted_sequence is damaged".into(),
        };
        let number = |column| row.get::<i64>(column)?.ok_or_else(damaged);
        let data_type = row.get::<String>(5)?.ok_or_else(damaged)?;
        let adopted = Adopted {
            sequence_oid: row.get::<pg_sys::Oid>(1)?.unwrap_or(pg_sys::InvalidOid),
            schema: row.get::<String>(2)?.ok_or_else(damaged)?,
            name: row.get::<String>(3)?.ok_or_else(damaged)?,
            identity: row
                .get::<String>(4)?
                .and_then(|letter| Identity::from_letter(&letter)),
            width: width_of(&data_type).ok_or_else(damaged)?,
            start: number(6)?,
            min: number(7)?,
            max: number(8)?,
            cache: number(9)?,
            floor: number(10)?,
        };
        let is_marked = row.get::<bool>(11)?.unwrap_or(false);
        // No worker may have looked yet, and the marks are those of before then.
        Ok(Some((adopted, !is_marked || settle::is_pending(client)?)))
    })
}

/// The tag has given the sequence back, above `floor`.
pub fn forget(found: &Found, adopted: &Adopted, floor: i64, columns: &[Column]) -> Result<(), Error> {
    let _as_owner = AsOwner::begin(found.tables.owner);
    Spi::connect_mut(|client| {
        let tag = found.tag.as_str();
        client.update(FORGET, None, &[tag.into()])?;
        write_event(
            client,
            "segment.release",
            tag,
            found.identity,
            adopted,
            floor,
            columns,
        )
    })
}
