//! `idgenctl status`.

use crate::shared::{Ended, OutputArguments, wait_for};
use clap::Args;
use idgen_daemon::config::{Config, parse_postgres};
use idgen_daemon::error::{Error, Result};
use idgen_daemon::operator::leases;
use idgen_daemon::status::{CertificateStatus, PoolStatus, Status, table};
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

/// Where only a URL is given.
const CONNECT_LIMIT: Duration = Duration::from_secs(3);

#[derive(Args)]
#[command(after_help = "Example:\n  idgenctl status --config /etc/idgend.toml --output json")]
pub struct StatusArguments {
    #[command(flatten)]
    output: OutputArguments,
    /// Configuration file of the server's idgend.
    #[arg(
        long,
        value_name = "FILE",
        conflicts_with = "postgres",
        required_unless_present = "postgres"
    )]
    config: Option<PathBuf>,
    /// libpq URL or key=value string of the server.
    #[arg(long, value_name = "URL")]
    postgres: Option<String>,
}

impl StatusArguments {
    pub fn run(self) -> Result<Ended> {
        let config = self.config.as_deref().map(Config::load).transpose()?;
        let (url, limit) = match (&config, self.postgres) {
            (Some(config), _) => (config.postgres.url.clone(), config.postgres.connect_timeout),
            (None, Some(url)) => (parse_postgres("--postgres", &url)?, CONNECT_LIMIT),
            (None, None) => return Err(Error::usage("neither --config nor --postgres is given")),
        };
        let mut status = wait_for(Status::read(&url, limit))??;
        if let Some(config) = &config {
            // The server's own state is told whether or not its store is within reach.
            status.pool = Some(match wait_for(leases::pool(config))? {
                Ok(Some(pool)) => PoolStatus::Known(pool),
                Ok(None) => PoolStatus::Unknown("the lease store is new".to_owned()),
                Err(error) => PoolStatus::Unknown(error.to_string()),
            });
            let now = SystemTime::now();
            let files = config.client_certificates();
            status.certificates = files
                .iter()
                .map(|file| CertificateStatus::read(file, now))
                .collect();
        }
        self.output.show(&status, table)?;
        Ok(Ended::unless(status.is_serving()))
    }
}
