//! Beacons in the embedded store: rows of `idgen.beacon`, each with the time of *its* database's clock. So it is known
//! how old a reading is, and one look tells all there is to know.

use super::super::beacons::{Beacon, Heard, Shown};
use crate::postgres::{PgError, PostgresUrl, Session};
use idgen_core::clock::UnixMs;
use idgen_core::lease::{BootId, InstanceId};
use std::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

/// Between two looks.
const PERIOD: Duration = Duration::from_secs(5);

/// While our server has not been read yet.
const SOON: Duration = Duration::from_millis(200);

/// Shows our clock. Rows of daemons that are long gone are taken away on the way.
const SHOW: &str = "
    WITH gone AS (DELETE FROM idgen.beacon WHERE noted_at < clock_timestamp() - interval '1 day')
    INSERT INTO idgen.beacon AS b (instance, boot_id, wall_ms, noted_at)
    VALUES ($1, $2, $3, clock_timestamp())
        ON CONFLICT (instance) DO UPDATE
       SET boot_id = excluded.boot_id, wall_ms = excluded.wall_ms, noted_at = excluded.noted_at";

/// What each shows now. A reading of the future was noted before this database's clock was set.
const LISTEN: &str = "
    SELECT b.instance, b.boot_id, b.wall_ms + (extract(epoch FROM n.now - b.noted_at) * 1000)::int8
      FROM idgen.beacon b CROSS JOIN (SELECT clock_timestamp() AS now) n
     WHERE b.noted_at BETWEEN n.now - interval '60 s' AND n.now AND b.instance <> $1";

/// Where to listen, and who we are.
#[derive(Clone, Debug)]
pub struct PostgresBeacons {
    /// The coordinator database.
    pub url: PostgresUrl,
    /// Limit for connecting.
    pub connect_timeout: Duration,
    /// Limit for each statement.
    pub request_timeout: Duration,
    /// Our own.
    pub instance: InstanceId,
}

impl PostgresBeacons {
    /// Shows and listens until `stop`. What goes wrong is tried again: nobody's lease depends on it.
    pub async fn listen(self, shown: Shown, heard: Heard, stop: CancellationToken) {
        let mut session = None;
        loop {
            let pause = match self.exchange(&mut session, &shown, &heard).await {
                Ok(true) => PERIOD,
                Ok(false) => SOON,
                Err(error) => {
                    tracing::debug!("listening for the clocks of peers: {error}");
                    session = None;
                    PERIOD
                }
            };
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    async fn connect(&self) -> Result<Session, PgError> {
        Session::open(
            &self.url,
            "idgend beacons",
            self.connect_timeout,
            self.request_timeout,
        )
        .await
    }

    /// One look. `false`: there is nothing of ours to show yet.
    async fn exchange(
        &self,
        session: &mut Option<Session>,
        shown: &Shown,
        heard: &Heard,
    ) -> Result<bool, PgError> {
        if !session.as_mut().is_some_and(Session::is_usable) {
            *session = None;
        }
        let session = match session {
            Some(session) => session,
            None => session.insert(self.connect().await?),
        };
        let me = Uuid::from_u128(self.instance.0);
        let own = shown.at(Instant::now());
        if let Some(own) = own {
            let (boot_id, wall_ms) = (Uuid::from_u128(own.boot_id.0), own.wall.0.cast_signed());
            session.execute(SHOW, &[&me, &boot_id, &wall_ms]).await?;
        }
        let asked = Instant::now();
        let rows = session.rows(LISTEN, &[&me]).await?;
        let took = asked.elapsed();
        let at = asked + took / 2;
        heard.late_by(took);
        let mut present = std::collections::BTreeMap::new();
        for row in &rows {
            let (instance, boot_id): (Uuid, Uuid) = (row.try_get(0)?, row.try_get(1)?);
            let wall_ms: i64 = row.try_get(2)?;
            let (instance, boot_id) = (InstanceId(instance.as_u128()), BootId(boot_id.as_u128()));
            let wall = UnixMs(u64::try_from(wall_ms).unwrap_or(0));
            heard.hear(instance, Beacon { boot_id, wall }, at);
            present.insert(instance, boot_id);
        }
        heard.looked(Instant::now(), present);
        Ok(own.is_some())
    }
}
