//! The control functions of the extension (`sql/10-control.sql`), and nothing else.

use super::session::{PgError, Session, describe};
use crate::config::PostgresConfig;
use crate::error::{Error, Result};
use idgen_core::clock::{BootMs, ClockReading, UnixMs};
use idgen_core::contract::CONTRACT_VERSION;
use idgen_core::format::SHARDED;
use idgen_core::lease::keeper::Held;
use idgen_core::lease::{
    Anchor, BootId, Cell, CellId, Claim, Class, Epoch, Identity, Judgement, Mark, Revision, Token,
};
use std::time::Duration;
use tokio_postgres::types::ToSql;
use uuid::Uuid;

/// Majors that the extension is built for.
const MAJORS: std::ops::RangeInclusive<i32> = 15..=18;

/// What `idgen.server_clock()` says.
#[derive(Clone, Copy, Debug)]
pub struct ServerClock {
    /// The life of the shared memory.
    pub boot_id: BootId,
    /// Both clocks.
    pub clock: ClockReading,
    /// The cell that was installed from; `None` before the first install.
    pub cell_id: Option<CellId>,
}

/// An identity in shared memory.
#[derive(Clone, Copy, Debug)]
pub struct OpenSlot {
    /// Identity and token.
    pub claim: Claim,
    /// It is not fenced.
    pub open: bool,
    /// Nothing above this was or will be minted.
    pub bound: UnixMs,
}

/// What a server remembers of the lease store of a class.
#[derive(Clone, Debug, Default)]
pub struct ServerMemory {
    /// In the order of the classes; the rows that only one class has are remembered for this one.
    pub anchors: Vec<Anchor>,
    /// When the store was asked for the grant or renewal that the class's anchor tells of: so long ago at the most.
    pub asked_ago: Option<Duration>,
    /// How identities of stores in its databases begin; `None`: it is in recovery.
    pub home: Option<String>,
}

/// What became of an install or extension.
#[derive(Debug)]
pub enum InstallOutcome {
    /// All identities are as asked.
    Done,
    /// At least one is not; the text is for people.
    Refused(String),
    /// The server has another boot id.
    Forgot,
}

/// The session of one class with the server that mints.
pub struct Control {
    session: Session,
    class: Class,
}

impl Control {
    /// Connects, and makes sure that this is a server to work with and that no other daemon leases this
    /// class for it.
    pub async fn open(config: &PostgresConfig, class: Class) -> Result<Self> {
        let session = Session::open(
            &config.url,
            "idgend",
            config.connect_timeout,
            config.connect_timeout,
        )
        .await
        .map_err(|error| {
            Error::retry(format!(
                "connect to postgres at {}: {error}",
                describe(&config.url)
            ))
        })?;
        let row = session
            .row("SELECT current_setting('server_version_num')::int4", &[])
            .await
            .map_err(|error| Error::retry(format!("look at the server: {error}")))?;
        check_major(column(&row, 0)?)?;
        let row = session
            .row("SELECT idgen.claim_server($1)", &[&class.name()])
            .await
            .map_err(explain)?;
        if !column::<bool>(&row, 0)? {
            return Err(Error::retry(
                "busy: another idgend serves this postgres server".to_owned(),
            ));
        }
        Ok(Self { session, class })
    }

    /// False once the connection has ended, or was made with certificates that others have replaced since.
    pub fn is_usable(&mut self) -> bool {
        self.session.is_usable()
    }

    /// Waits until the connection has ended.
    pub async fn closed(&mut self) {
        self.session.closed().await;
    }

    /// Boot id and clocks. `Retry` errors mean that the server cannot be used now.
    pub async fn server_clock(&self) -> Result<ServerClock> {
        let row = self
            .session
            .row(
                "SELECT boot_id, boottime_ms, wall_ms, in_recovery, cell_id, extension_version, \
                        contract_version FROM idgen.server_clock()",
                &[],
            )
            .await
            .map_err(explain)?;
        let (theirs, version): (i32, String) = (column(&row, 6)?, column(&row, 5)?);
        if theirs != CONTRACT_VERSION {
            return Err(Error::refused(format!(
                "the extension {version} speaks contract version {theirs}, idgend {} speaks {}",
                env!("CARGO_PKG_VERSION"),
                CONTRACT_VERSION
            ))
            .with_hint("install the idgend and the pg_idgen of one release, and restart postgres"));
        }
        if column::<bool>(&row, 3)? {
            return Err(Error::retry("the server is in recovery; a standby mints nothing"));
        }
        Ok(ServerClock {
            boot_id: BootId(column::<Uuid>(&row, 0)?.as_u128()),
            clock: ClockReading {
                wall: UnixMs(unsigned(column(&row, 2)?)?),
                boot: BootMs(unsigned(column(&row, 1)?)?),
            },
            cell_id: column::<Option<Uuid>>(&row, 4)?.map(|id| CellId(id.as_u128())),
        })
    }

    /// What the server remembers of its lease store.
    pub async fn memory(&self) -> Result<ServerMemory> {
        let row = self
            .session
            .row(
                "SELECT (SELECT a.age_ms FROM idgen.anchors() a WHERE a.kind = $1),
                        CASE WHEN NOT pg_is_in_recovery() THEN
                             (SELECT format('postgres/%s/%s/', i.system_identifier, i.timeline)
                                FROM idgen.store_identity() i) END",
                &[&self.class.name()],
            )
            .await
            .map_err(explain)?;
        let age_ms: Option<i64> = column(&row, 0)?;
        Ok(ServerMemory {
            anchors: read_anchors(&self.session, Some(self.class)).await?,
            asked_ago: age_ms.map(unsigned).transpose()?.map(Duration::from_millis),
            home: column(&row, 1)?,
        })
    }

    /// Has the server write down how far the store has come. On its disk when this returns.
    pub async fn remember(&self, boot_id: BootId, anchor: &Anchor, asked: BootMs) -> Result<InstallOutcome> {
        let (boot_id, text) = (Uuid::from_u128(boot_id.0), anchor.to_string());
        let store = "SELECT idgen.store_anchor($1, $2, $3, $4)";
        match self
            .session
            .rows(store, &[&boot_id, &self.class.name(), &text, &signed(asked.0)?])
            .await
        {
            Ok(_) => Ok(InstallOutcome::Done),
            Err(error) if error.sqlstate() == Some("IG101") => Ok(InstallOutcome::Forgot),
            Err(error) => Err(explain(error)),
        }
    }

    /// Tells what is known of the server's wall clock.
    pub async fn note_clock(&self, judged: &Judgement) -> Result<()> {
        let accepted = if judged.accepted {
            "; an operator has accepted it"
        } else {
            ""
        };
        let reason = format!("{}{accepted}", judged.state);
        let error_us = judged.error_us_max.and_then(|us| i64::try_from(us).ok());
        self.session
            .rows(
                "SELECT idgen.note_clock($1, $2, $3, $4)",
                &[&judged.state.name(), &reason, &judged.offset_us, &error_us],
            )
            .await
            .map_err(explain)?;
        Ok(())
    }

    /// Tells whether somebody has drained the server, and why.
    pub async fn note_drained(&self, why: Option<&str>) -> Result<()> {
        self.session
            .rows("SELECT idgen.note_drained($1)", &[&why])
            .await
            .map_err(explain)?;
        Ok(())
    }

    /// Every identity of the class that shared memory knows of.
    pub async fn slots(&self) -> Result<Vec<OpenSlot>> {
        let rows = self
            .session
            .rows(
                "SELECT identity, token_epoch, token_revision, state, last_ms, ceiling_ms \
                   FROM idgen.slot_states() WHERE kind = $1 ORDER BY identity",
                &[&self.class.name()],
            )
            .await
            .map_err(explain)?;
        rows.iter()
            .map(|row| {
                let state: String = column(row, 3)?;
                let open = state != "fenced";
                let bound = if open { column(row, 5)? } else { column(row, 4)? };
                let claim = Claim {
                    identity: identity(column(row, 0)?)?,
                    token: Token {
                        epoch: Epoch(unsigned(column(row, 1)?)?),
                        revision: Revision(unsigned(column(row, 2)?)?),
                    },
                };
                Ok(OpenSlot {
                    claim,
                    open,
                    bound: UnixMs(unsigned(bound)?),
                })
            })
            .collect()
    }

    /// Opens every identity of the lease.
    pub async fn install(&self, held: &Held, cell: &Cell, anchor: ClockReading) -> Result<InstallOutcome> {
        let lease = LeaseArgs::new(held)?;
        let answer = self
            .session
            .row(
                "SELECT coalesce(bool_and(idgen.install_lease($1, $2, $3, $4, $5, l.identity, l.epoch, l.revision, \
                        l.floor_ms, l.ceiling_ms, $8, $9, $10) IS NOT NULL), false) \
                   FROM unnest($11::int4[], $12::int8[], $13::int8[], $6::int8[], $7::int8[]) \
                        AS l(identity, floor_ms, ceiling_ms, epoch, revision)",
                &[
                    &CONTRACT_VERSION,
                    &lease.boot_id,
                    &Uuid::from_u128(cell.cell_id.0),
                    &formats_of(self.class, cell),
                    &self.class.name(),
                    &lease.epochs,
                    &lease.revisions,
                    &lease.deadline_ms,
                    &signed(anchor.wall.0)?,
                    &signed(anchor.boot.0)?,
                    &lease.identities,
                    &lease.floors_ms,
                    &lease.ceilings_ms,
                ],
            )
            .await;
        outcome(answer)
    }

    /// Raises ceilings and deadline of every identity of the lease.
    /// The formats are told before: what is committed now may reach beyond a switch.
    pub async fn extend(
        &self,
        held: &Held,
        cell: &Cell,
        anchor: Option<ClockReading>,
    ) -> Result<InstallOutcome> {
        let lease = LeaseArgs::new(held)?;
        let wall_ms = anchor.map(|anchor| signed(anchor.wall.0)).transpose()?;
        let boottime_ms = anchor.map(|anchor| signed(anchor.boot.0)).transpose()?;
        let answer = self
            .session
            .row(
                "SELECT coalesce(bool_and(idgen.extend_lease($1, $2, $3, $4, l.identity, l.epoch, l.revision, \
                        l.ceiling_ms, $7, $8, $9)), false) \
                   FROM unnest($10::int4[], $11::int8[], $5::int8[], $6::int8[]) \
                        AS l(identity, ceiling_ms, epoch, revision)",
                &[
                    &CONTRACT_VERSION,
                    &lease.boot_id,
                    &formats_of(self.class, cell),
                    &self.class.name(),
                    &lease.epochs,
                    &lease.revisions,
                    &lease.deadline_ms,
                    &wall_ms,
                    &boottime_ms,
                    &lease.identities,
                    &lease.ceilings_ms,
                ],
            )
            .await;
        outcome(answer)
    }

    /// Closes claims. `None`: the server has another boot id. Claims that are not the latest of their
    /// identity get no mark.
    pub async fn fence(&self, boot_id: BootId, claims: &[Claim]) -> Result<Option<Vec<Mark>>> {
        let boot_id = Uuid::from_u128(boot_id.0);
        let identities: Vec<i32> = claims.iter().map(|claim| i32::from(claim.identity.0)).collect();
        let epochs = claims
            .iter()
            .map(|claim| signed(claim.token.epoch.0))
            .collect::<Result<Vec<_>>>()?;
        let revisions = claims
            .iter()
            .map(|claim| signed(claim.token.revision.0))
            .collect::<Result<Vec<_>>>()?;
        let kind = self.class.name();
        let params: [&(dyn ToSql + Sync); 5] = [&boot_id, &identities, &epochs, &revisions, &kind];
        let answer = self
            .session
            .rows(
                "SELECT c.n, idgen.fence_lease($1, $5, c.identity, c.epoch, c.revision) \
                   FROM unnest($2::int4[], $3::int8[], $4::int8[]) \
                        WITH ORDINALITY AS c(identity, epoch, revision, n)",
                &params,
            )
            .await;
        let rows = match answer {
            Ok(rows) => rows,
            Err(error) if error.sqlstate() == Some("IG101") => return Ok(None),
            Err(error) => return Err(explain(error)),
        };
        let mut marks = Vec::with_capacity(rows.len());
        for row in &rows {
            let (ordinal, last): (i64, Option<i64>) = (column(row, 0)?, column(row, 1)?);
            let claim = usize::try_from(ordinal - 1)
                .ok()
                .and_then(|index| claims.get(index));
            if let (Some(last), Some(claim)) = (last, claim) {
                marks.push(Mark {
                    claim: *claim,
                    last: UnixMs(unsigned(last)?),
                });
            }
        }
        Ok(Some(marks))
    }
}

/// Anchors of the server; a witness is a row of one class, so those of others are left out.
pub async fn read_anchors(session: &Session, class: Option<Class>) -> Result<Vec<Anchor>> {
    let rows = session
        .rows("SELECT kind, anchor FROM idgen.anchors() ORDER BY kind", &[])
        .await
        .map_err(explain)?;
    rows.iter()
        .map(|row| {
            let (kind, text): (String, String) = (column(row, 0)?, column(row, 1)?);
            let anchor: Anchor = text
                .parse()
                .map_err(|error| Error::runtime(format!("the server's {kind} anchor: {error}")))?;
            let witness = anchor
                .witness
                .filter(|_| class.is_some_and(|class| class.name() == kind));
            Ok(Anchor { witness, ..anchor })
        })
        .collect()
}

/// The wall clock of the server.
pub async fn server_wall(session: &Session) -> Result<UnixMs> {
    let row = session
        .row("SELECT wall_ms FROM idgen.server_clock()", &[])
        .await
        .map_err(explain)?;
    let wall_ms: i64 = column(&row, 0)?;
    Ok(UnixMs(u64::try_from(wall_ms).unwrap_or(0)))
}

/// What ids of the class look like: that of workers is a property of the cell, that of shards is fixed.
fn formats_of(class: Class, cell: &Cell) -> String {
    match class {
        Class::Worker => cell.worker_format.clone(),
        Class::Shard => SHARDED.to_string(),
    }
}

/// A lease as SQL parameters.
struct LeaseArgs {
    boot_id: Uuid,
    epochs: Vec<i64>,
    revisions: Vec<i64>,
    deadline_ms: i64,
    identities: Vec<i32>,
    floors_ms: Vec<i64>,
    ceilings_ms: Vec<i64>,
}

impl LeaseArgs {
    fn new(held: &Held) -> Result<Self> {
        let windows = || held.leased.iter().map(|leased| leased.window);
        let tokens = || held.leased.iter().map(|leased| leased.token);
        Ok(Self {
            boot_id: Uuid::from_u128(held.boot_id.0),
            epochs: tokens()
                .map(|token| signed(token.epoch.0))
                .collect::<Result<_>>()?,
            revisions: tokens()
                .map(|token| signed(token.revision.0))
                .collect::<Result<_>>()?,
            deadline_ms: signed(held.deadline.0)?,
            identities: held
                .leased
                .iter()
                .map(|leased| i32::from(leased.identity.0))
                .collect(),
            floors_ms: windows()
                .map(|window| signed(window.floor.0))
                .collect::<Result<_>>()?,
            ceilings_ms: windows()
                .map(|window| signed(window.ceiling.0))
                .collect::<Result<_>>()?,
        })
    }
}

fn check_major(version_num: i32) -> Result<()> {
    let major = version_num / 10_000;
    if MAJORS.contains(&major) {
        return Ok(());
    }
    Err(Error::refused(format!(
        "postgres {major} is not supported; idgend works with {} to {}",
        MAJORS.start(),
        MAJORS.end()
    )))
}

fn outcome(answer: std::result::Result<tokio_postgres::Row, PgError>) -> Result<InstallOutcome> {
    let error = match answer {
        Ok(row) if column::<bool>(&row, 0)? => return Ok(InstallOutcome::Done),
        Ok(_) => {
            return Ok(InstallOutcome::Refused(
                "the token is not the open one in shared memory".to_owned(),
            ));
        }
        Err(error) => error,
    };
    match error.sqlstate() {
        Some("IG101") => Ok(InstallOutcome::Forgot),
        Some("IG102" | "IG103" | "IG104") => Ok(InstallOutcome::Refused(error.to_string())),
        _ => Err(explain(error)),
    }
}

/// Which errors of a control function end the daemon, and which it waits out.
pub fn explain(error: PgError) -> Error {
    let text = error.to_string();
    match error.sqlstate() {
        // Undefined function, schema, table or column.
        Some("42883" | "3F000" | "42P01" | "42703") => {
            Error::refused(format!("the database has no usable pg_idgen extension: {text}"))
                .with_hint("run CREATE EXTENSION pg_idgen in the database that idgend connects to")
        }
        Some("IG011") => Error::refused(format!("the extension is not preloaded: {text}"))
            .with_hint("set shared_preload_libraries = 'pg_idgen' in postgresql.conf and restart postgres"),
        Some("IG105" | "IG106" | "IG109" | "IG009") => Error::refused(text),
        Some("IG107") => Error::retry(text).with_hint(
            "nothing is leased until that is settled; docs/operations.md has a section on anchors",
        ),
        Some("42501") => Error::retry(text)
            .with_hint("as a superuser, run SELECT idgen.grant_daemon('ROLE') for the role of idgend"),
        _ => Error::retry(text),
    }
}

/// A column of a row.
pub(crate) fn column<'r, T: tokio_postgres::types::FromSql<'r>>(
    row: &'r tokio_postgres::Row,
    index: usize,
) -> Result<T> {
    row.try_get(index)
        .map_err(|error| Error::runtime(format!("read column {index}: {error}")))
}

fn unsigned(value: i64) -> Result<u64> {
    u64::try_from(value).map_err(|_| Error::runtime(format!("{value} is negative")))
}

fn signed(value: u64) -> Result<i64> {
    i64::try_from(value).map_err(|_| Error::runtime(format!("{value} does not fit into bigint")))
}

fn identity(identity: i32) -> Result<Identity> {
    u16::try_from(identity)
        .map(Identity)
        .map_err(|_| Error::runtime(format!("{identity} is no identity")))
}
