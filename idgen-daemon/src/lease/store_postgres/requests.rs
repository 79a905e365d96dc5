//! Requests and approvals in the embedded store: rows of `idgen.request`, and of `idgen.approval`, which only
//! `idgen.approve()` writes, for whoever the server has authenticated.

use super::super::requests::{read_text, text_of};
use super::super::store::{StoreError, StoreErrorKind};
use super::super::store_requests::{Asked, RequestStore};
use super::{PostgresStore, Result, begin_change, broken, column, ms, not_done, orders, signed};
use crate::postgres::{PostgresUrl, Session, describe};
use idgen_core::lease::approval::{Approval, Ask, Digest, Needed, Request, RequestId};
use idgen_core::lease::ledger::Row;
use idgen_core::lease::{AdvancePlan, Order};
use std::collections::BTreeMap;
use std::time::Duration;
use uuid::Uuid;

const NEEDED: &str = "
    SELECT (SELECT approvals_needed FROM idgen.cell),
           (SELECT count(*) FROM idgen.approver a JOIN pg_roles r ON r.oid = a.role_oid AND r.rolname = a.role
             WHERE r.rolcanlogin AND NOT r.rolsuper) >= 2";

const REQUESTS: &str = "SELECT request_id, ask, outcome FROM idgen.request ORDER BY asked_at DESC";

const APPROVALS: &str = "SELECT request_id, approver::text, ask_sha256 FROM idgen.approval";

const ASK: &str = "
    INSERT INTO idgen.request (request_id, ask, expires_at) VALUES ($1, $2, to_timestamp($3::float8 / 1000))
        ON CONFLICT DO NOTHING";

/// Uses the request, if its text is the one that was approved and all of these have approved it; the caller counts.
const USE: &str = "
    UPDATE idgen.request r SET done_at = clock_timestamp(), outcome = $2
     WHERE r.request_id = $1 AND r.done_at IS NULL AND sha256(convert_to(r.ask, 'UTF8')) = $3
       AND (SELECT count(*) FROM idgen.approval a
             WHERE a.request_id = r.request_id AND a.ask_sha256 = $3 AND a.approver::text = ANY ($4)) = cardinality($4)";

/// The ceiling stays: the holder may have minted up to it.
const FORCE: &str = "
    UPDATE idgen.lease
       SET exact = false, revision = $1, holder = NULL, holder_name = NULL, token_epoch = NULL, token_revision = NULL,
           boot_id = NULL, expires_at = NULL
     WHERE kind = $2 AND identity = $3 AND token_epoch = $4 AND token_revision = $5 AND revision = $6";

const NEED: &str = "UPDATE idgen.cell SET approvals_needed = $1";

const APPROVE: &str = "SELECT idgen.approve($1, $2)::text";

/// Uses it in the transaction that is open; 1, or it is not as it was judged.
pub(super) async fn use_up(session: &Session, request: &Request, outcome: &str) -> Result<u64> {
    let approvers: Vec<String> = request.approvers().into_iter().collect();
    session
        .execute(
            USE,
            &[
                &Uuid::from_u128(request.ask.id.0),
                &outcome,
                &&request.digest.0[..],
                &approvers,
            ],
        )
        .await
        .map_err(not_done)
}

async fn read_requests(session: &Session) -> Result<Vec<Request>> {
    let mut approvals: BTreeMap<RequestId, Vec<Approval>> = BTreeMap::new();
    for row in session.rows(APPROVALS, &[]).await.map_err(not_done)? {
        let digest: Vec<u8> = column(&row, 2)?;
        let digest = digest
            .try_into()
            .map_err(|_| broken("a digest has another length"))?;
        let id = RequestId(column::<Uuid>(&row, 0)?.as_u128());
        approvals.entry(id).or_default().push(Approval {
            approver: column(&row, 1)?,
            digest: Digest(digest),
        });
    }
    let rows = session.rows(REQUESTS, &[]).await.map_err(not_done)?;
    let request = |row: &tokio_postgres::Row| {
        let id = RequestId(column::<Uuid>(row, 0)?.as_u128());
        let text: String = column(row, 1)?;
        Ok(Request {
            ask: read_text(id, &text)?,
            digest: Digest::of(&text),
            approvals: approvals.remove(&id).unwrap_or_default(),
            done: column(row, 2)?,
        })
    };
    rows.iter().map(request).collect()
}

impl RequestStore for PostgresStore {
    async fn asked(&mut self) -> Result<Asked> {
        let session = self.take_session().await?;
        let row = session.row(NEEDED, &[]).await.map_err(not_done)?;
        let set: Option<i32> = column(&row, 0)?;
        let needed = Needed {
            set: set.and_then(|set| u32::try_from(set).ok()),
            has_two: column(&row, 1)?,
        };
        let requests = read_requests(&session).await?;
        self.session = Some(session);
        Ok(Asked { needed, requests })
    }

    async fn ask(&mut self, ask: &Ask) -> Result<()> {
        let session = self.take_session().await?;
        let warnings = session.warnings();
        session.batch("BEGIN").await.map_err(not_done)?;
        let asked = session
            .execute(
                ASK,
                &[&Uuid::from_u128(ask.id.0), &text_of(ask)?, &ms(ask.expires.0)],
            )
            .await
            .map_err(not_done)?;
        self.commit_all(session, warnings, asked, 1).await
    }

    async fn force_release(&mut self, request: &Request, row: &Row, order: &Order) -> Result<()> {
        let session = self.take_session().await?;
        let warnings = session.warnings();
        let revision = begin_change(&session).await?;
        let used = use_up(&session, request, "the identity was taken from its holder").await?;
        // It is written from the row, so before that is changed.
        let ordered = orders::record(&session, order, revision).await?;
        let forced = session
            .execute(
                FORCE,
                &[
                    &revision,
                    &order.class.name(),
                    &i32::from(row.identity.0),
                    &signed(order.token.epoch.0)?,
                    &signed(order.token.revision.0)?,
                    &signed(row.revision.0)?,
                ],
            )
            .await
            .map_err(not_done)?;
        self.commit_all(session, warnings, used + ordered + forced, 3)
            .await
    }

    async fn advance_by(&mut self, request: &Request, plan: &AdvancePlan) -> Result<()> {
        self.advance_with(plan, Some(request)).await
    }

    async fn need(&mut self, request: &Request, approvals: u32) -> Result<()> {
        let session = self.take_session().await?;
        let warnings = session.warnings();
        begin_change(&session).await?;
        let outcome = format!("{approvals} people are needed from now on");
        let used = use_up(&session, request, &outcome).await?;
        let needed = session
            .execute(NEED, &[&approvals.cast_signed()])
            .await
            .map_err(not_done)?;
        self.commit_all(session, warnings, used + needed, 2).await
    }
}

/// Somebody who approves, as the role that the server knows by this connection.
pub struct PostgresApprover {
    /// The store's database, as the approver connects to it.
    pub url: PostgresUrl,
    /// Limit for connecting, and for each statement.
    pub limit: Duration,
}

impl PostgresApprover {
    /// Approves the request with this text; returns the role.
    pub async fn approve(&mut self, request: &Request) -> Result<String> {
        let session = Session::open(&self.url, "idgenctl", self.limit, self.limit)
            .await
            .map_err(|error| {
                let message = format!("connect to {}: {error}", describe(&self.url));
                StoreError::new(StoreErrorKind::Unreachable, message)
            })?;
        let id = Uuid::from_u128(request.ask.id.0);
        let warnings = session.warnings();
        let approved = session.row(APPROVE, &[&id, &&request.digest.0[..]]).await;
        let row = approved.map_err(|error| match error.sqlstate() {
            Some("42501") => {
                let hint = "SELECT idgen.grant_approver('ROLE') in the store's database makes an approver";
                StoreError::new(StoreErrorKind::Denied, format!("{error} (hint: {hint})"))
            }
            Some("IG041") => StoreError::new(StoreErrorKind::Denied, error.to_string()),
            _ => not_done(error),
        })?;
        if session.warnings() != warnings {
            let why = "the server warned, so the approval may not be replicated";
            return Err(StoreError::new(StoreErrorKind::Unknown, why));
        }
        column(&row, 0)
    }
}
