//! `idgenctl clock`.

use crate::shared::{DryRunArguments, Ended, OutputArguments};
use clap::Subcommand;
use idgen_daemon::config::Config;
use idgen_daemon::error::{Error, Result};
use idgen_daemon::operator::clock;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;

#[derive(Subcommand)]
pub enum ClockCommand {
    /// Say that the server's wall clock is right as it is now, although it was set, is not synchronised or is apart
    /// from the peers': idgend takes new leases and raises ceilings by it again, until that is over. May be repeated;
    /// does nothing when the clock is believed already. The idgend must run on this host and serve HTTP.
    #[command(after_help = "Example:\n  idgenctl clock accept --config /etc/idgend.toml")]
    Accept {
        /// Configuration file of the idgend.
        #[arg(
            long,
            value_name = "FILE",
            conflicts_with = "http",
            required_unless_present = "http"
        )]
        config: Option<PathBuf>,
        /// Address and port that it listens at.
        #[arg(long, value_name = "ADDR")]
        http: Option<SocketAddr>,
        #[command(flatten)]
        output: OutputArguments,
        #[command(flatten)]
        dry_run: DryRunArguments,
    },
}

impl ClockCommand {
    pub fn run(self) -> Result<Ended> {
        let Self::Accept {
            config,
            http,
            output,
            dry_run,
        } = self;
        let addr = match (config, http) {
            (_, Some(addr)) => addr,
            (Some(path), None) => http_of(&Config::load(&path)?)?,
            (None, None) => return Err(Error::usage("neither --config nor --http is given")),
        };
        let change = clock::accept(addr, dry_run.dry_run)?;
        output.show_change(&change, |clocks| clocks.to_string())?;
        Ok(Ended::OK)
    }
}

/// Where the idgend of this configuration can be asked.
fn http_of(config: &Config) -> Result<SocketAddr> {
    let unknown = |why: &str| {
        let error = Error::usage(format!("{why}, so idgend cannot be asked"));
        Err(error.with_hint("restarting idgend accepts the clock too"))
    };
    match config.http_listen {
        None => unknown("http.listen is empty"),
        Some(addr) if addr.port() == 0 => unknown("http.listen leaves the port open, give --http ADDR"),
        Some(addr) if addr.ip().is_unspecified() => {
            Ok(SocketAddr::new(Ipv4Addr::LOCALHOST.into(), addr.port()))
        }
        Some(addr) => Ok(addr),
    }
}
