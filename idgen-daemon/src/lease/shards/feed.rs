//! Writes the map into the database of the server, for `idgen.shard_map`.

use super::map::{ShardBoard, ShardMap};
use crate::complaint::Complaint;
use crate::config::PostgresConfig;
use crate::error::Result;
use crate::postgres::{PgError, Session};
use idgen_core::lease::Place;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;

/// Between two tries to write.
const PAUSE: Duration = Duration::from_secs(1);

/// How far it is true is written this often at the most where nothing else has changed.
const STATE_PERIOD: Duration = Duration::from_secs(1);

/// Makes the rows what they should be, and touches no other.
const WRITE: &str = "
    WITH now AS (
        SELECT * FROM unnest($1::int4[], $2::text[], $3::text[], $4::text[], $5::text[], $6::int8[], $7::int8[],
                             $8::int8[], $9::int8[])
            AS n(shard, server, address, state, goes_to, token_epoch, token_revision, since_ms, version)),
    gone AS (
        DELETE FROM idgen.shard_place p WHERE NOT EXISTS (SELECT FROM now n WHERE n.shard = p.shard)),
    written AS (
        INSERT INTO idgen.shard_place AS p
        SELECT n.* FROM now n
         WHERE NOT EXISTS (SELECT FROM idgen.shard_place o WHERE o.shard = n.shard AND o IS NOT DISTINCT FROM n)
            ON CONFLICT (shard) DO UPDATE
           SET server = excluded.server, address = excluded.address, state = excluded.state,
               goes_to = excluded.goes_to, token_epoch = excluded.token_epoch,
               token_revision = excluded.token_revision, since_ms = excluded.since_ms, version = excluded.version)
    INSERT INTO idgen.shard_map_state AS s (store_revision, known_at)
    VALUES ($10, clock_timestamp() - $11 * interval '1 millisecond')
        ON CONFLICT (one) DO UPDATE SET store_revision = excluded.store_revision, known_at = excluded.known_at";

const WRITE_STATE: &str = "
    UPDATE idgen.shard_map_state
       SET store_revision = $1, known_at = clock_timestamp() - $2 * interval '1 millisecond'";

/// See the module.
pub struct MapFeeder {
    postgres: PostgresConfig,
    board: ShardBoard,
    session: Option<Session>,
    /// What the table has.
    written: Option<Arc<ShardMap>>,
    trouble: Complaint,
}

impl MapFeeder {
    /// One that has not begun.
    #[must_use]
    pub fn new(postgres: PostgresConfig, board: ShardBoard) -> Self {
        Self {
            postgres,
            board,
            session: None,
            written: None,
            trouble: Complaint::default(),
        }
    }

    /// Writes what changes until `stop`. What goes wrong is tried again: nobody mints by it.
    pub async fn run(mut self, stop: CancellationToken) -> Result<()> {
        let mut board = self.board.follow();
        let mut wrote_at = Instant::now();
        loop {
            let pause = match self.write(wrote_at.elapsed() >= STATE_PERIOD).await {
                Ok(wrote) => {
                    if wrote {
                        wrote_at = Instant::now();
                    }
                    self.trouble.settle("idgen.shard_map is written again");
                    None
                }
                Err(error) => {
                    let text = format!("idgen.shard_map cannot be written: {error}");
                    self.trouble.raise(text, Instant::now());
                    (self.session, self.written) = (None, None);
                    Some(PAUSE)
                }
            };
            tokio::select! {
                () = stop.cancelled() => return Ok(()),
                () = tokio::time::sleep(pause.unwrap_or(STATE_PERIOD)) => {}
                changed = board.changed(), if pause.is_none() => {
                    if changed.is_err() {
                        return Ok(());
                    }
                }
            }
        }
    }

    /// `is_due`: also where only its age has changed.
    async fn write(&mut self, is_due: bool) -> std::result::Result<bool, PgError> {
        let Some(map) = self.board.read() else {
            return Ok(false);
        };
        let same = self
            .written
            .as_ref()
            .is_some_and(|written| written.places == map.places);
        if same && !is_due {
            return Ok(false);
        }
        let open = self.session.take();
        let session = match open.and_then(|mut session| session.is_usable().then_some(session)) {
            Some(session) => session,
            None => {
                // A crash of the server has emptied the table.
                self.written = None;
                let PostgresConfig {
                    url, connect_timeout, ..
                } = &self.postgres;
                Session::open(url, "idgend shard map", *connect_timeout, *connect_timeout).await?
            }
        };
        let age_ms = map.age(Instant::now()).as_secs_f64() * 1_000.0;
        let revision = map.revision.0.cast_signed();
        if self.written.is_some() && same {
            session.execute(WRITE_STATE, &[&revision, &age_ms]).await?;
        } else {
            write_places(&session, &map.places, revision, age_ms).await?;
        }
        self.session = Some(session);
        self.written = Some(map);
        Ok(true)
    }
}

async fn write_places(
    session: &Session,
    places: &[Place],
    revision: i64,
    age_ms: f64,
) -> std::result::Result<(), PgError> {
    let texts = |of: fn(&Place) -> &str| places.iter().map(of).collect::<Vec<&str>>();
    let numbers = |of: fn(&Place) -> Option<u64>| {
        let numbers = places.iter().map(|place| of(place).map(u64::cast_signed));
        numbers.collect::<Vec<Option<i64>>>()
    };
    let shards: Vec<i32> = places.iter().map(|place| i32::from(place.shard.0)).collect();
    session
        .execute(
            WRITE,
            &[
                &shards,
                &texts(|place| &place.server),
                &texts(|place| &place.address),
                &texts(|place| place.state.name()),
                &texts(|place| &place.goes_to),
                &numbers(|place| place.holding.map(|holding| holding.token.epoch.0)),
                &numbers(|place| place.holding.map(|holding| holding.token.revision.0)),
                &numbers(|place| place.holding.map(|holding| holding.since.0)),
                &numbers(|place| Some(place.version)),
                &revision,
                &age_ms,
            ],
        )
        .await?;
    Ok(())
}
