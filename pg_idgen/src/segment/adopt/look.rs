//! What the catalogue says of a sequence, of the columns that draw from it or from a tag, and of what refers to them.

use crate::error::Error;
use idgen_core::segment::adopt::Width;
use pgrx::pg_sys;
use pgrx::spi::{SpiClient, SpiHeapTupleData};

/// Names are quoted as SQL needs them, and tables and sequences carry their schema.
pub struct Sequence {
    pub oid: pg_sys::Oid,
    pub name: String,
    pub schema: String,
    pub bare_name: String,
    pub owner: pg_sys::Oid,
    pub width: Width,
    pub start: i64,
    pub increment: i64,
    pub min: i64,
    pub max: i64,
    pub cache: i64,
    pub cycles: bool,
}

/// A column whose default draws.
pub struct Column {
    pub relation: pg_sys::Oid,
    pub number: i16,
    /// Not quoted.
    pub schema: String,
    pub table: String,
    pub name: String,
    pub type_name: String,
    /// `None`: no integer type.
    pub width: Option<Width>,
    /// It is an identity column, or a partition's share of one.
    pub identity: Option<Identity>,
    /// It has no parent among the columns that were found with it.
    pub is_root: bool,
    /// The default is nothing but the call.
    pub is_plain: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Identity {
    Always,
    ByDefault,
}

impl Identity {
    pub fn as_sql(self) -> &'static str {
        match self {
            Self::Always => "ALWAYS",
            Self::ByDefault => "BY DEFAULT",
        }
    }

    /// As `pg_attribute.attidentity` and `idgen.adopted_sequence.identity` have it.
    pub fn as_letter(self) -> &'static str {
        match self {
            Self::Always => "a",
            Self::ByDefault => "d",
        }
    }

    pub fn from_letter(letter: &str) -> Option<Self> {
        [Self::Always, Self::ByDefault]
            .into_iter()
            .find(|identity| identity.as_letter() == letter)
    }
}

pub fn width_of(type_name: &str) -> Option<Width> {
    match type_name {
        "smallint" => Some(Width::Small),
        "integer" => Some(Width::Integer),
        "bigint" => Some(Width::Big),
        _ => None,
    }
}

pub fn type_of(width: Width) -> &'static str {
    match width {
        Width::Small => "smallint",
        Width::Integer => "integer",
        Width::Big => "bigint",
    }
}

/// $1: the relation, $2: the caller.
const SEQUENCE: &str = "
    SELECT format('%I.%I', n.nspname, c.relname), n.nspname::text, c.relname::text, c.relowner, pg_has_role($2, c.relowner, 'USAGE'),
           c.relpersistence = 't', (SELECT e.extname::text FROM pg_depend d JOIN pg_extension e ON e.oid = d.refobjid
             WHERE d.classid = 'pg_class'::regclass AND d.objid = c.oid AND d.refclassid = 'pg_extension'::regclass AND d.deptype = 'e'),
           s.seqtypid::regtype::text, s.seqstart, s.seqincrement, s.seqmin, s.seqmax, s.seqcache, s.seqcycle
      FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace LEFT JOIN pg_sequence s ON s.seqrelid = c.oid
     WHERE c.oid = $1";

/// What a column looks like. `k`: relation, number, whether it is a root of an identity.
macro_rules! column {
    () => {
        "c.oid, k.number, format('%I.%I', n.nspname, c.relname) COLLATE \"C\" AS table, quote_ident(a.attname),
         format_type(a.atttypid, a.atttypmod), a.attidentity::text, k.is_root, pg_has_role($2, c.relowner, 'USAGE'),
         c.relkind::text, c.relpersistence = 't',
         EXISTS (SELECT FROM pg_depend d WHERE d.classid = 'pg_class'::regclass AND d.objid = c.oid AND d.deptype = 'e'),
         n.nspname::text"
    };
}

macro_rules! column_from {
    () => {
        "FROM columns k JOIN pg_class c ON c.oid = k.relation JOIN pg_namespace n ON n.oid = c.relnamespace
         JOIN pg_attribute a ON (a.attrelid, a.attnum) = (k.relation, k.number)
         LEFT JOIN pg_attrdef e ON (e.adrelid, e.adnum) = (k.relation, k.number)
        ORDER BY 3, 2"
    };
}

/// The columns that draw from sequence $1, by identity or by a default, for caller $2. A partition has its parent's
/// identity (since PostgreSQL 17) if it has none of its own.
const DRAWING: &str = concat!(
    "WITH RECURSIVE shares AS (
        SELECT d.refobjid AS relation, d.refobjsubid::smallint AS number, true AS is_root
          FROM pg_depend d
         WHERE d.classid = 'pg_class'::regclass AND d.objid = $1 AND d.refclassid = 'pg_class'::regclass
           AND d.deptype = 'i' AND d.refobjsubid > 0
         UNION
        SELECT i.inhrelid, p.attnum, false
          FROM shares s JOIN pg_attribute a ON (a.attrelid, a.attnum) = (s.relation, s.number)
          JOIN pg_inherits i ON i.inhparent = s.relation
          JOIN pg_attribute p ON p.attrelid = i.inhrelid AND p.attname = a.attname AND p.attidentity <> ''
         WHERE NOT EXISTS (SELECT FROM pg_depend d WHERE d.refclassid = 'pg_class'::regclass AND d.refobjid = p.attrelid
                              AND d.refobjsubid = p.attnum AND d.classid = 'pg_class'::regclass AND d.deptype = 'i')
     ), columns AS (
        SELECT relation, number, is_root FROM shares
         UNION ALL
        SELECT f.adrelid, f.adnum, true
          FROM pg_depend d JOIN pg_attrdef f ON f.oid = d.objid
         WHERE d.refclassid = 'pg_class'::regclass AND d.refobjid = $1 AND d.classid = 'pg_attrdef'::regclass
     )
     SELECT ",
    column!(),
    ", coalesce(pg_get_expr(e.adbin, e.adrelid)
          = 'nextval(''' || replace($1::regclass::text, '''', '''''') || '''::regclass)', true) ",
    column_from!()
);

/// The columns whose default is `idgen_segment()` of the tag whose SQL constant is $1 and nothing else, for caller $2. A
/// column that has its parent's default is no root.
const TAGGED: &str = concat!(
    "WITH tagged AS (
        SELECT f.adrelid AS relation, f.adnum AS number
          FROM pg_extension x
          JOIN pg_depend m ON m.refclassid = 'pg_extension'::regclass AND m.refobjid = x.oid AND m.deptype = 'e'
                          AND m.classid = 'pg_proc'::regclass
          JOIN pg_proc p ON p.oid = m.objid AND p.proname = 'idgen_segment'
          JOIN pg_depend d ON d.refclassid = 'pg_proc'::regclass AND d.refobjid = p.oid AND d.classid = 'pg_attrdef'::regclass
          JOIN pg_attrdef f ON f.oid = d.objid
         WHERE x.extname = 'pg_idgen'
           AND pg_get_expr(f.adbin, f.adrelid) = p.oid::regproc::text || '(' || $1 || '::text)'
     ), columns AS (
        SELECT t.relation, t.number,
               NOT EXISTS (SELECT FROM pg_inherits i JOIN tagged o ON o.relation = i.inhparent
                             JOIN pg_attribute a ON (a.attrelid, a.attnum) = (t.relation, t.number)
                             JOIN pg_attribute b ON (b.attrelid, b.attnum) = (o.relation, o.number)
                            WHERE i.inhrelid = t.relation AND a.attname = b.attname) AS is_root
          FROM tagged t
     )
     SELECT ",
    column!(),
    ", true ",
    column_from!()
);

/// What depends on sequence $1 beside defaults of columns: views, functions with a parsed body, domains with a default.
const OTHERS: &str = "
    SELECT pg_describe_object(d.classid, d.objid, d.objsubid)
      FROM pg_depend d
     WHERE d.refclassid = 'pg_class'::regclass AND d.refobjid = $1 AND d.classid <> 'pg_attrdef'::regclass
       AND (d.classid <> 'pg_type'::regclass OR EXISTS (SELECT FROM pg_type t WHERE t.oid = d.objid AND t.typtype = 'd'))
     ORDER BY 1 LIMIT 1";

/// A table, and all that inherit from it: partitions too.
const DESCENDANTS: &str = "
    WITH RECURSIVE tree AS (
        SELECT $1 AS oid UNION SELECT i.inhrelid FROM tree t JOIN pg_inherits i ON i.inhparent = t.oid)
    SELECT t.oid, c.relkind = 'f', format('%I.%I', n.nspname, c.relname)
      FROM tree t JOIN pg_class c ON c.oid = t.oid JOIN pg_namespace n ON n.oid = c.relnamespace
     ORDER BY t.oid <> $1, t.oid";

/// Columns with a foreign key on column $2 of table $1; of a partitioned table the key itself, not its parts.
const REFERENCES: &str = "
    SELECT format('%I.%I', n.nspname, c.relname) COLLATE \"C\", quote_ident(a.attname), format_type(a.atttypid, a.atttypmod),
           quote_ident(f.conname)
      FROM pg_constraint f CROSS JOIN LATERAL unnest(f.confkey, f.conkey) AS k (there, here)
      JOIN pg_class c ON c.oid = f.conrelid JOIN pg_namespace n ON n.oid = c.relnamespace
      JOIN pg_attribute a ON (a.attrelid, a.attnum) = (f.conrelid, k.here)
     WHERE f.contype = 'f' AND f.conparentid = 0 AND f.confrelid = $1 AND k.there = $2
     ORDER BY 1, 2, 4";

fn lost(what: &str) -> Error {
    Error::Internal {
        message: format!("the catalogue gave no {what}"),
    }
}

fn text(row: &SpiHeapTupleData<'_>, column: usize) -> Result<String, Error> {
    row.get::<String>(column)?.ok_or_else(|| lost("name"))
}

fn is_true(row: &SpiHeapTupleData<'_>, column: usize) -> Result<bool, Error> {
    Ok(row.get::<bool>(column)? == Some(true))
}

/// Says why a sequence cannot be adopted or put back.
pub type Refuse = fn(object: &str, detail: String, hint: &'static str) -> Error;

/// The sequence, which has to be the caller's.
///
/// # Errors
/// Not a sequence, not the caller's, a temporary one, one of an extension.
pub fn sequence(
    client: &mut SpiClient<'_>,
    oid: pg_sys::Oid,
    user: pg_sys::Oid,
    refuse: Refuse,
) -> Result<Sequence, Error> {
    let Some(row) = client.update(SEQUENCE, None, &[oid.into(), user.into()])?.next() else {
        return Err(Error::NoSequence {
            name: oid.to_u32().to_string(),
        });
    };
    let name = text(&row, 1)?;
    let Some(data_type) = row.get::<String>(8)? else {
        return Err(Error::NoSequence { name });
    };
    if !is_true(&row, 5)? {
        return Err(Error::NotOwner {
            kind: "sequence",
            name,
        });
    }
    if is_true(&row, 6)? {
        let detail = "It is temporary: it ends with its session, and a tag does not.".into();
        return Err(refuse(&name, detail, ""));
    }
    if let Some(extension) = row.get::<String>(7)? {
        let detail = format!("It belongs to extension {extension}.");
        return Err(refuse(&name, detail, ""));
    }
    let number = |column| row.get::<i64>(column).map(Option::unwrap_or_default);
    Ok(Sequence {
        oid,
        schema: text(&row, 2)?,
        bare_name: text(&row, 3)?,
        owner: row.get::<pg_sys::Oid>(4)?.ok_or_else(|| lost("owner"))?,
        width: width_of(&data_type).ok_or_else(|| lost("type of a sequence"))?,
        start: number(9)?,
        increment: number(10)?,
        min: number(11)?,
        max: number(12)?,
        cache: number(13)?,
        cycles: is_true(&row, 14)?,
        name,
    })
}

/// The columns that draw from `sequence`.
///
/// # Errors
/// One that is not the caller's, or cannot be moved.
pub fn drawing_columns(
    client: &mut SpiClient<'_>,
    sequence: &Sequence,
    user: pg_sys::Oid,
    refuse: Refuse,
) -> Result<Vec<Column>, Error> {
    let found = client.update(DRAWING, None, &[sequence.oid.into(), user.into()])?;
    found.map(|row| column(&row, &sequence.name, refuse)).collect()
}

/// The columns that draw from the tag by their default.
///
/// # Errors
/// One that is not the caller's, or cannot be moved.
pub fn tagged_columns(
    client: &mut SpiClient<'_>,
    tag: &str,
    user: pg_sys::Oid,
    refuse: Refuse,
) -> Result<Vec<Column>, Error> {
    let constant = super::literal(tag);
    let found = client.update(TAGGED, None, &[constant.as_str().into(), user.into()])?;
    found.map(|row| column(&row, tag, refuse)).collect()
}

fn column(row: &SpiHeapTupleData<'_>, of: &str, refuse: Refuse) -> Result<Column, Error> {
    let table = text(row, 3)?;
    let name = text(row, 4)?;
    let type_name = text(row, 5)?;
    if !is_true(row, 8)? {
        return Err(Error::NotOwner {
            kind: "table",
            name: table,
        });
    }
    if !["r", "p"].contains(&text(row, 9)?.as_str()) || is_true(row, 10)? || is_true(row, 11)? {
        let detail = format!(
            "Column {name} of {table} draws from it, and that is no table of its own right: it is foreign, temporary, or of an extension."
        );
        return Err(refuse(of, detail, "Take the default of that column away first."));
    }
    Ok(Column {
        relation: row.get::<pg_sys::Oid>(1)?.ok_or_else(|| lost("table"))?,
        number: row.get::<i16>(2)?.ok_or_else(|| lost("column"))?,
        width: width_of(&type_name),
        identity: Identity::from_letter(&text(row, 6)?),
        is_root: is_true(row, 7)?,
        schema: text(row, 12)?,
        is_plain: is_true(row, 13)?,
        table,
        name,
        type_name,
    })
}

/// What else the sequence is needed for, if anything.
pub fn other_dependent(client: &mut SpiClient<'_>, sequence: &Sequence) -> Result<Option<String>, Error> {
    let found = client.update(OTHERS, None, &[sequence.oid.into()])?.next();
    Ok(found.map(|row| row.get::<String>(1)).transpose()?.flatten())
}

/// The tables of the columns with all that inherit from them, and the sequence, if there is one: parents first, since
/// that is how inserts lock, the sequence last.
///
/// # Errors
/// A foreign table among them, whose rows no lock of ours protects.
pub fn relations(
    client: &mut SpiClient<'_>,
    columns: &[Column],
    sequence: Option<pg_sys::Oid>,
    of: &str,
    refuse: Refuse,
) -> Result<Vec<pg_sys::Oid>, Error> {
    let mut relations = Vec::new();
    for column in columns {
        for row in client.update(DESCENDANTS, None, &[column.relation.into()])? {
            if is_true(&row, 2)? {
                let detail = format!(
                    "{} inherits from {} and is a foreign table, whose highest number cannot be known for certain.",
                    text(&row, 3)?,
                    column.table
                );
                return Err(refuse(of, detail, "Detach it first."));
            }
            let relation = row.get::<pg_sys::Oid>(1)?.ok_or_else(|| lost("table"))?;
            if !relations.contains(&relation) {
                relations.push(relation);
            }
        }
    }
    relations.extend(sequence);
    Ok(relations)
}

/// The highest value in a column, those of partitions and children included.
pub fn highest(client: &mut SpiClient<'_>, column: &Column) -> Result<Option<i64>, Error> {
    let query = format!("SELECT max({})::bigint FROM {}", column.name, column.table);
    Ok(client.update(&query, None, &[])?.first().get::<i64>(1)?)
}

/// What refers to a column by a foreign key, as lines of the answer.
pub fn references(client: &mut SpiClient<'_>, column: &Column) -> Result<Vec<super::Line>, Error> {
    let found = client.update(REFERENCES, None, &[column.relation.into(), column.number.into()])?;
    found
        .map(|row| {
            let note = format!(
                "foreign key {} on {}.{}",
                text(&row, 4)?,
                column.table,
                column.name
            );
            Ok(super::Line {
                column_name: Some(text(&row, 2)?),
                data_type: Some(text(&row, 3)?),
                ..super::Line::on("references", text(&row, 1)?, note)
            })
        })
        .collect()
}
