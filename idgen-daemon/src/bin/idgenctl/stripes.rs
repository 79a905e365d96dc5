//! `idgenctl stripes`.

use crate::shared::{CellArguments, ConsentArguments, Ended, wait_for};
use clap::Subcommand;
use idgen_daemon::error::Result;
use idgen_daemon::operator::masters;
use idgen_daemon::operator::stripes::{self, Stripes, Wish};
use uuid::Uuid;

#[derive(Subcommand)]
pub enum StripesCommand {
    /// Show every stripe that is or was claimed, and who holds its authority now.
    #[command(
        after_help = "Example:\n  idgenctl stripes list --config /etc/idgend.toml --space c0ffee00-1234-4abc-8def-000000000001"
    )]
    List {
        #[command(flatten)]
        cell: CellArguments,
        /// Of one space only.
        #[arg(long, value_name = "UUID")]
        space: Option<Uuid>,
    },
    /// Give a stripe of a space to a database of this configuration's server, for good: its standbys have it too. Refused
    /// while another database has it, when the space is cut among another number of masters, and when another database
    /// had it whose grants the store does not know. Does nothing when it has it already.
    #[command(
        after_help = "Example:\n  idgenctl stripes claim --config north.toml --space c0ffee00-1234-4abc-8def-000000000001 --stripe 0 --of 3 --above 5000000"
    )]
    Claim {
        #[command(flatten)]
        cell: CellArguments,
        /// The space: space_id in idgen.health of the database that has made it, which is the first to claim.
        #[arg(long, value_name = "UUID")]
        space: Uuid,
        /// The index of the stripe, from 0.
        #[arg(long, value_name = "I")]
        stripe: u32,
        /// Among how many masters the space is cut, 2 to 64. The first claim decides it, for good.
        #[arg(long, value_name = "N")]
        of: u32,
        /// Ids per stripe, 10,000 to 1,000,000,000,000. The first claim decides it: 100,000 where it does not say.
        #[arg(long, value_name = "IDS")]
        size: Option<u64>,
        /// Ids up to this one were granted before the space was cut, and are nobody's. The first claim decides it: 0 where
        /// it does not say.
        #[arg(long, value_name = "ID")]
        above: Option<i64>,
        /// The database that is to belong to the space; that of the configuration where none is named.
        #[arg(long, value_name = "NAME")]
        database: Option<String>,
        #[command(flatten)]
        consent: ConsentArguments,
    },
    /// Let a database of this configuration's server grant under the index that it has claimed. Refused without a claim, before
    /// the database that has made the space, when its tags have granted what may be others', and when a database has
    /// granted under the index before and how far is not known. Done again, it takes in tags that came since from a dump.
    #[command(
        after_help = "Example:\n  idgenctl stripes join --config north.toml --space c0ffee00-1234-4abc-8def-000000000001"
    )]
    Join {
        #[command(flatten)]
        cell: CellArguments,
        /// The space.
        #[arg(long, value_name = "UUID")]
        space: Uuid,
        /// The database; that of the configuration where none is named.
        #[arg(long, value_name = "NAME")]
        database: Option<String>,
        #[command(flatten)]
        consent: ConsentArguments,
    },
    /// Make a database of this configuration's server a space of its own again, and give its index back.
    #[command(
        after_help = "Example:\n  idgenctl stripes leave --config south.toml --space c0ffee00-1234-4abc-8def-000000000001 --reason 'server sold'"
    )]
    Leave {
        #[command(flatten)]
        cell: CellArguments,
        /// The space that it leaves.
        #[arg(long, value_name = "UUID")]
        space: Uuid,
        /// The database; that of the configuration where none is named.
        #[arg(long, value_name = "NAME")]
        database: Option<String>,
        /// Why. It is kept with the claim.
        #[arg(long, value_name = "TEXT")]
        reason: String,
        #[command(flatten)]
        consent: ConsentArguments,
    },
    /// Take a stripe from a database that is gone. Refused while it has joined and its authority is held. The claim stays on record.
    #[command(
        after_help = "Example:\n  idgenctl stripes release --config north.toml --space c0ffee00-1234-4abc-8def-000000000001 --stripe 1 --reason 'server burned down'"
    )]
    Release {
        #[command(flatten)]
        cell: CellArguments,
        /// The space.
        #[arg(long, value_name = "UUID")]
        space: Uuid,
        /// The index of the stripe.
        #[arg(long, value_name = "I")]
        stripe: u32,
        /// Why. It is kept with the claim.
        #[arg(long, value_name = "TEXT")]
        reason: String,
        #[command(flatten)]
        consent: ConsentArguments,
    },
}

impl StripesCommand {
    pub fn run(self) -> Result<Ended> {
        let (output, change) = match self {
            Self::List { cell, space } => {
                let listed = wait_for(stripes::list(&cell.load()?, space))??;
                cell.output.show(&listed, Stripes::table)?;
                return Ok(Ended::OK);
            }
            Self::Claim {
                cell,
                space: space_id,
                stripe,
                of,
                size,
                above,
                database,
                consent,
            } => {
                let wish = Wish {
                    space_id,
                    stripe,
                    of,
                    size,
                    above,
                    database,
                };
                let (consent, config) = (consent.consent()?, cell.load()?);
                (cell.output, wait_for(stripes::claim(&config, wish, consent))?)
            }
            Self::Join {
                cell,
                space,
                database,
                consent,
            } => {
                let (consent, config) = (consent.consent()?, cell.load()?);
                let work = masters::join(&config, space, database.as_deref(), consent);
                (cell.output, wait_for(work)?)
            }
            Self::Leave {
                cell,
                space,
                database,
                reason,
                consent,
            } => {
                let (consent, config) = (consent.consent()?, cell.load()?);
                let work = masters::leave(&config, space, database.as_deref(), &reason, consent);
                (cell.output, wait_for(work)?)
            }
            Self::Release {
                cell,
                space,
                stripe,
                reason,
                consent,
            } => {
                let (consent, config) = (consent.consent()?, cell.load()?);
                let work = stripes::release(&config, (space, stripe), &reason, consent);
                (cell.output, wait_for(work)?)
            }
        };
        output.show_change(&change?, Stripes::table)?;
        Ok(Ended::OK)
    }
}
