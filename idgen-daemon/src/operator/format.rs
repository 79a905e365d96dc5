//! `idgenctl format`: shows the format of a cell's worker ids, and switches it at a moment to come.

use super::consent::{Change, Consent};
use super::region::{RegionStatus, others};
use super::store::{of_store, open, rfc3339, timing};
use crate::config::Config;
use crate::error::{Error, Result};
use crate::lease::{AnyStore, CellStore, StoreErrorKind};
use crate::postgres::{PgError, Session, describe};
use idgen_core::clock::UnixMs;
use idgen_core::format::register::Widths;
use idgen_core::format::{CellFormat, Format, FormatPlan, by_name};
use idgen_core::lease::{Class, plan_switch};
use serde::Serialize;
use std::fmt;
use std::str::FromStr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A switch is tried again this often when a daemon has renewed its lease meanwhile.
const TRIES_MAX: u32 = 20;

/// The formats of a cell over time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Formats {
    /// As the lease store has it.
    pub plan: String,
    /// The format before any switch of the plan.
    pub first: String,
    /// The switch.
    pub switch: Option<Switch>,
}

/// A switch of a plan, to come or past.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Switch {
    /// The format from then on.
    pub to: String,
    /// The moment, in Unix ms.
    pub at_ms: u64,
    /// The same for people, in RFC 3339.
    pub at: String,
}

impl Formats {
    fn of(plan: &FormatPlan) -> Self {
        Self {
            plan: plan.to_string(),
            first: plan.first().to_string(),
            switch: plan.switch().map(|(at, to)| Switch {
                to: to.to_string(),
                at_ms: at.0,
                at: rfc3339(at),
            }),
        }
    }
}

impl fmt::Display for Formats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.switch {
            None => f.write_str(&self.first),
            Some(Switch { to, at_ms, at }) => {
                write!(f, "{}\n{to} from {at} on (Unix ms {at_ms})", self.first)
            }
        }
    }
}

/// When to switch: a moment, or a time after the store's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// This moment.
    At(UnixMs),
    /// So much later than now.
    After(Duration),
}

impl FromStr for When {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        if let Some(duration) = text.strip_prefix('+') {
            return humantime::parse_duration(duration)
                .map(Self::After)
                .map_err(|error| format!("not a duration such as +15m: {error}"));
        }
        let moment: SystemTime = humantime::parse_rfc3339(text).map_err(|error| {
            format!("neither a moment such as 2026-12-01T03:00:00Z nor +DURATION: {error}")
        })?;
        let since = moment
            .duration_since(UNIX_EPOCH)
            .map_err(|_| "before 1970".to_owned())?;
        let ms = u64::try_from(since.as_millis()).map_err(|_| "too far away".to_owned())?;
        Ok(Self::At(UnixMs(ms)))
    }
}

impl When {
    fn moment(self, now: UnixMs) -> UnixMs {
        match self {
            Self::At(at) => at,
            Self::After(later) => now.saturating_add(u64::try_from(later.as_millis()).unwrap_or(u64::MAX)),
        }
    }
}

/// What to switch to.
#[derive(Clone, Debug)]
pub struct Wish {
    /// Name of a compiled-in format, or of one in table `idgen.format` of the server.
    pub to: String,
    /// The region that the cell claims; `None`: that which it has claimed, where the format has one.
    pub region: Option<u64>,
    /// Configurations of other cells, which must not have that region.
    pub beside: Vec<Config>,
    /// When.
    pub when: When,
}

/// The cell's formats as its store has them.
pub async fn show(config: &Config) -> Result<Formats> {
    match open(config) {
        AnyStore::Postgres(store) => read(*store).await,
        AnyStore::Etcd(store) => read(*store).await,
    }
}

/// Switches, if that is consented to; the formats with the switch.
pub async fn switch(config: &Config, wish: &Wish, consent: Consent) -> Result<Change<Formats>> {
    let format = match by_name(&wish.to) {
        Some(format) => *format,
        None => registered(config, &wish.to).await?,
    };
    let others = others(&wish.beside).await?;
    let window_ms = timing(config, Class::Worker)?.window_ms();
    match open(config) {
        AnyStore::Postgres(store) => commit(*store, (format, wish), &others, window_ms, consent).await,
        AnyStore::Etcd(store) => commit(*store, (format, wish), &others, window_ms, consent).await,
    }
}

async fn read(mut store: impl CellStore) -> Result<Formats> {
    let snapshot = store.read().await.map_err(of_store)?;
    parse(&snapshot.cell.worker_format)
}

fn parse(text: &str) -> Result<Formats> {
    let plan: FormatPlan = text.parse().map_err(|error| {
        Error::refused(format!(
            "the cell's worker format \"{text}\" cannot be read: {error}"
        ))
        .with_hint("use the idgenctl of the release that has written it")
    })?;
    Ok(Formats::of(&plan))
}

async fn commit(
    mut store: impl CellStore,
    (format, wish): (Format, &Wish),
    others: &[RegionStatus],
    window_ms: u64,
    consent: Consent,
) -> Result<Change<Formats>> {
    let mut is_consented = false;
    let mut asked_for: Option<String> = None;
    // The same for every try, so that one that has got through unseen is recognised.
    let mut at: Option<UnixMs> = None;
    let mut trouble = None;
    for _ in 0..TRIES_MAX {
        let snapshot = store.read().await.map_err(of_store)?;
        if asked_for.as_ref() == Some(&snapshot.cell.worker_format) {
            // The answer to the try before got lost.
            return parse(&snapshot.cell.worker_format).map(Change::made);
        }
        let now = store.clock().await.map_err(of_store)?;
        let at = *at.get_or_insert_with(|| wish.when.moment(now));
        let claimed = RegionStatus::of(&snapshot.cell)?;
        let to = claimed.format(format, wish, others)?;
        let plan = plan_switch(&snapshot, to, at, now, window_ms)
            .map_err(|error| Error::refused(error.to_string()))?;
        if !is_consented {
            let would = sentence(&claimed, &to, at);
            is_consented = consent.may(&would)?;
            if !is_consented {
                return Ok(Change::tried(parse(&plan.formats)?, would));
            }
            // Somebody may have thought about it for a while, in which windows were granted.
            continue;
        }
        match store.switch(&plan).await {
            Ok(()) => return parse(&plan.formats).map(Change::made),
            Err(error) if error.kind == StoreErrorKind::Conflict => trouble = Some(error),
            Err(error) if error.kind == StoreErrorKind::Unknown => {
                asked_for = Some(plan.formats);
                trouble = Some(error);
            }
            Err(error) => return Err(of_store(error)),
        }
    }
    let why = trouble.map_or_else(String::new, |error| format!(": {error}"));
    Err(
        Error::retry(format!("no switch was made in {TRIES_MAX} tries{why}"))
            .with_hint("look at idgenctl format show before you try again"),
    )
}

fn sentence(before: &RegionStatus, to: &CellFormat, at: UnixMs) -> String {
    let claims = match (before.region, to.region()) {
        (None, Some(region)) => format!("Region {region} is claimed for the cell, for good, and every"),
        _ => "Every".to_owned(),
    };
    format!(
        "{claims} server of cell {} mints worker ids in the format {to} from {} on; this cannot be taken back, and there \
         is no other switch before that moment.",
        before.cell_id,
        rfc3339(at)
    )
}

const DEFINITION: &str = "
    SELECT (extract(epoch FROM epoch) * 1000)::int8, sign_bits::int4, ts_bits::int4, region_bits::int4,
           version_bits::int4, node_bits::int4, seq_bits::int4, is_shard
      FROM idgen.format WHERE name = $1";

/// A format that was registered in the server's database.
async fn registered(config: &Config, name: &str) -> Result<Format> {
    let (url, limit) = (&config.postgres.url, config.postgres.connect_timeout);
    let at = describe(url);
    let failed = |error: PgError| Error::runtime(format!("read the formats of {at}: {error}"));
    let session = Session::open(url, "idgenctl", limit, limit)
        .await
        .map_err(failed)?;
    let rows = session.rows(DEFINITION, &[&name]).await.map_err(failed)?;
    let Some(row) = rows.first() else {
        let unknown = Error::usage(format!(
            "no format \"{name}\" is compiled in or registered at {at}"
        ));
        return Err(unknown.with_hint("register it with idgen.register_format"));
    };
    let broken = |error: String| Error::refused(format!("format \"{name}\" of {at}: {error}"));
    let width = |index| -> Result<u32> {
        let bits: i32 = row.try_get(index).map_err(|error| broken(error.to_string()))?;
        u32::try_from(bits).map_err(|_| broken("a width is negative".to_owned()))
    };
    let epoch_ms: i64 = row.try_get(0).map_err(|error| broken(error.to_string()))?;
    let epoch = u64::try_from(epoch_ms).map_err(|_| broken("its epoch is before 1970".to_owned()))?;
    let widths = Widths {
        sign: width(1)?,
        ts: width(2)?,
        region: width(3)?,
        version: width(4)?,
        node: width(5)?,
        seq: width(6)?,
    };
    let is_shard = row.try_get(7).map_err(|error| broken(error.to_string()))?;
    Format::register(name, UnixMs(epoch), widths, is_shard).map_err(|error| broken(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_is_absolute_or_from_now() {
        assert_eq!(
            "2026-11-29T00:00:00Z".parse(),
            Ok(When::At(UnixMs(1_795_910_400_000)))
        );
        let later: When = "+1h 30m".parse().unwrap();
        assert_eq!(later.moment(UnixMs(5)), UnixMs(5 + 90 * 60_000));
        for nonsense in [
            "",
            "15m",
            "+",
            "+15",
            "-15m",
            "tomorrow",
            "2026-11-29",
            "2026-11-29T00:00:00+01:00",
        ] {
            assert!(nonsense.parse::<When>().is_err(), "{nonsense}");
        }
    }

    #[test]
    fn formats_are_shown_with_the_moment_of_the_switch() {
        assert_eq!(parse("classic").unwrap().to_string(), "classic");
        let shown = parse("classic; regional/1 from 1795910400000").unwrap();
        assert_eq!(
            shown.to_string(),
            "classic\nregional/1 from 2026-11-29T00:00:00.000Z on (Unix ms 1795910400000)"
        );
        assert!(parse("klassisch").is_err());
    }
}
