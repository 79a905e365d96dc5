//! `idgenctl approvals show`, and the requests that `leases show` names: one request, whole.

use super::approvals::{Shown, find, sentence};
use super::revoke::{Which, surveyed};
use super::store::{open, printable, rfc3339};
use crate::config::Config;
use crate::error::{Error, Result};
use crate::lease::{AnyStore, RequestStore};
use idgen_core::lease::Survey;
use idgen_core::lease::approval::{Act, Needed, Request, RequestId, means};
use serde::Serialize;
use uuid::Uuid;

/// A request, and what comes of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Whole {
    /// How it stands.
    #[serde(flatten)]
    pub shown: Shown,
    /// Of which cell it is.
    pub cell_id: Uuid,
    /// What is asked, field by field.
    pub asks: Asks,
    /// SHA-256 of its text, which approvals name.
    pub digest: String,
    /// Who has approved another text than it has now: that counts for nothing.
    pub of_another_text: Vec<String>,
    /// For how many seconds more it may be approved and done. `None`: for none.
    pub expires_in_s: Option<u64>,
    /// What will happen when enough have approved it, in a sentence.
    pub would: Option<String>,
    /// Why it will not.
    pub would_not: Option<String>,
}

/// What is asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Asks {
    /// To take an identity from its holder.
    ForceRelease {
        /// worker or shard.
        class: &'static str,
        /// The number that ids carry.
        identity: u16,
        /// First part of the token of the lease that is meant.
        epoch: u64,
        /// Second part.
        revision: u64,
        /// How often it had been granted.
        generation: u64,
    },
    /// To open a sealed store.
    AdvanceEpoch {
        /// The epoch that it has.
        from: u64,
        /// The store.
        store: String,
        /// The plan of formats that is to hold, where it was named.
        formats: Option<String>,
    },
    /// To have so many approvals be needed.
    Need {
        /// One or two.
        approvals: u32,
    },
}

impl Asks {
    fn of(act: &Act) -> Self {
        match act {
            Act::ForceRelease {
                class,
                identity,
                token,
                generation,
            } => Self::ForceRelease {
                class: class.name(),
                identity: identity.0,
                epoch: token.epoch.0,
                revision: token.revision.0,
                generation: *generation,
            },
            Act::AdvanceEpoch {
                from,
                identity,
                formats,
            } => Self::AdvanceEpoch {
                from: from.0.0,
                store: identity.to_string(),
                formats: formats.clone(),
            },
            Act::Need { approvals } => Self::Need {
                approvals: *approvals,
            },
        }
    }
}

impl Whole {
    fn of(config: &Config, survey: &Survey, needed: Needed, request: &Request) -> Self {
        let alive = request.check_alive(survey.cell.cell_id, survey.now);
        let would = match alive {
            Ok(()) => sentence(config, survey, &request.ask.act).map_err(|error| error.to_string()),
            Err(why) => Err(why.to_string()),
        };
        let approvers = request.approvers();
        let others = request
            .approvals
            .iter()
            .filter(|approval| approval.digest != request.digest);
        let left_ms = request.ask.expires.since(survey.now);
        Self {
            shown: Shown::of(request, needed, survey),
            cell_id: Uuid::from_u128(request.ask.cell_id.0),
            asks: Asks::of(&request.ask.act),
            digest: request
                .digest
                .0
                .iter()
                .map(|byte| format!("{byte:02x}"))
                .collect(),
            of_another_text: others
                .map(|approval| approval.approver.clone())
                .filter(|approver| !approvers.contains(approver))
                .collect(),
            expires_in_s: (request.done.is_none() && left_ms > 0).then_some(left_ms.div_ceil(1_000)),
            would_not: would.as_ref().err().cloned(),
            would: would.ok(),
        }
    }

    /// For people.
    #[must_use]
    pub fn text(&self) -> String {
        let mut lines = vec![self.shown.text()];
        if let Some(left_s) = self.expires_in_s {
            lines.push(format!("expires   in {left_s} s"));
        }
        if !self.of_another_text.is_empty() {
            let names = printable(&self.of_another_text.join(", "));
            lines.push(format!("not by    {names}: the request had another text then"));
        }
        lines.push(format!("cell      {}\ndigest    {}", self.cell_id, self.digest));
        lines.extend(
            self.would
                .iter()
                .map(|would| format!("\nWhen enough have approved it: {would}")),
        );
        lines.extend(
            self.would_not
                .iter()
                .map(|why| format!("\nNothing will come of it: {}", printable(why))),
        );
        lines.join("\n")
    }
}

/// Shows one.
pub async fn show(config: &Config, request: Uuid) -> Result<Whole> {
    match open(config) {
        AnyStore::Postgres(store) => show_in(*store, config, request).await,
        AnyStore::Etcd(store) => show_in(*store, config, request).await,
    }
}

async fn show_in(mut store: impl RequestStore, config: &Config, request: Uuid) -> Result<Whole> {
    let survey = surveyed(&mut store).await?;
    let found = find(&mut store, RequestId(request.as_u128())).await;
    // Nothing was to be changed, so nothing was refused.
    let (needed, request) = found.map_err(|error| {
        let unknown = Error::runtime(format!("there is no request {request} in this cell"));
        if error.kind() == crate::error::ErrorKind::Retry {
            error
        } else {
            unknown.with_hint("idgenctl approvals list shows all of them")
        }
    })?;
    Ok(Whole::of(config, &survey, needed, &request))
}

/// A request that may still take an identity from whoever holds it now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Pending {
    /// What it is named by.
    pub request: Uuid,
    /// Who has approved it.
    pub approved_by: Vec<String>,
    /// How many different people are needed.
    pub needed: u32,
    /// Why it was asked.
    pub reason: String,
    /// Until when it may be approved and done, in RFC 3339.
    pub expires: String,
}

impl Pending {
    /// Those of one identity.
    pub(super) fn of(survey: &Survey, needed: Needed, requests: &[Request], which: Which) -> Vec<Self> {
        let row = super::revoke::row_of(survey, which);
        let means_it = |request: &&Request| {
            let Act::ForceRelease { class, .. } = &request.ask.act else {
                return false;
            };
            *class == which.class
                && row.is_some_and(|row| means(&request.ask.act, row))
                && request.check_alive(survey.cell.cell_id, survey.now).is_ok()
        };
        let pending = requests.iter().filter(means_it).map(|request| Self {
            request: Uuid::from_u128(request.ask.id.0),
            approved_by: request.approvers().into_iter().collect(),
            needed: needed.of(&request.ask.act),
            reason: request.ask.reason.clone(),
            expires: rfc3339(request.ask.expires),
        });
        pending.collect()
    }

    /// For people.
    pub(super) fn text(&self) -> String {
        let approved = match self.approved_by.as_slice() {
            [] => "nobody yet".to_owned(),
            names => printable(&names.join(", ")),
        };
        format!(
            "pending  request {} would take it by force: {}; approved by {approved}, {} are needed, until {} (idgenctl approvals \
             show)",
            self.request,
            printable(&self.reason),
            self.needed,
            self.expires
        )
    }
}
