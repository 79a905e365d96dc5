//! `/metrics`, `/livez` and `/readyz` for whoever watches, `/v1/shards` for clients that look for a shard, `/clock/accept` for an operator on this host.

use crate::authority::Board;
use crate::error::{Error, Result};
use crate::lease::{AcceptClock, Report, ShardBoard};
use crate::metrics::Metrics;
use axum::Router;
use axum::extract::{ConnectInfo, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use idgen_core::lease::Class;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// What the pages are made from.
#[derive(Clone)]
pub struct Pages {
    /// The last report of each keeper.
    pub reports: Vec<(Class, watch::Receiver<Report>)>,
    /// How the authority over segments stands, by database; empty where it is not leased.
    pub authority: Board,
    /// Where each shard is; `None`: this server takes no part in that.
    pub shards: Option<ShardBoard>,
    /// The metrics.
    pub metrics: Arc<Metrics>,
    /// Where each keeper is told to believe its server's clock.
    pub clocks: Vec<(Class, AcceptClock)>,
}

/// Where an operator accepts a clock that was set.
pub const ACCEPT_CLOCK: &str = "/clock/accept";

/// The header that such a request must have. A page in somebody's browser can post to loopback too, but not with a
/// header of its own.
pub const ASKED_BY: &str = "idgen-asked-by";

/// Takes the port, before anything else is started.
pub fn bind(addr: SocketAddr) -> Result<TcpListener> {
    let listening = || -> std::io::Result<TcpListener> {
        let listener = TcpListener::bind(addr)?;
        listener.set_nonblocking(true)?;
        let addr = listener.local_addr()?;
        tracing::info!(%addr, "http listening");
        Ok(listener)
    };
    listening().map_err(|error| Error::runtime(format!("listen on {addr}: {error}")))
}

/// Serves until `stop`.
pub async fn serve(listener: TcpListener, pages: Pages, stop: CancellationToken) -> Result<()> {
    let failed = |error| Error::runtime(format!("serve http: {error}"));
    let listener = tokio::net::TcpListener::from_std(listener).map_err(failed)?;
    let router = Router::new()
        .route("/metrics", get(metrics))
        .route("/livez", get(async || "ok\n"))
        .route("/readyz", get(readyz))
        .route("/v1/shards", get(shards))
        .route(ACCEPT_CLOCK, get(would_accept_clock).post(accept_clock))
        .with_state(pages)
        .into_make_service_with_connect_info::<SocketAddr>();
    // No graceful end: a client that keeps its connection open must not delay the release of a lease.
    tokio::select! {
        served = axum::serve(listener, router) => served.map_err(failed),
        () = stop.cancelled() => Ok(()),
    }
}

async fn metrics(State(pages): State<Pages>) -> Response {
    let reports: Vec<(Class, Report)> = pages
        .reports
        .iter()
        .map(|(class, report)| (*class, report.borrow().clone()))
        .collect();
    let reports = reports.iter().map(|(class, report)| (*class, report));
    let now = Instant::now();
    pages.metrics.set_authority(&pages.authority.read(), now);
    match pages.metrics.render(reports, now) {
        Ok(text) => ([(header::CONTENT_TYPE, prometheus::TEXT_FORMAT)], text).into_response(),
        Err(error) => {
            tracing::error!("{error}");
            (StatusCode::INTERNAL_SERVER_ERROR, "internal error\n").into_response()
        }
    }
}

/// Where each shard is, with the revision of the store that it is true for, and how old that is.
async fn shards(State(pages): State<Pages>) -> Response {
    let Some(board) = &pages.shards else {
        let why = "this server has no shards: its configuration has no key shards.ids\n";
        return (StatusCode::NOT_FOUND, why).into_response();
    };
    match board.read() {
        Some(map) => {
            let json = format!("{}\n", map.json(Instant::now()));
            ([(header::CONTENT_TYPE, "application/json")], json).into_response()
        }
        None => (
            StatusCode::SERVICE_UNAVAILABLE,
            "the lease store was not read yet\n",
        )
            .into_response(),
    }
}

/// Believes the clock of the server as it is now. Only from this host: whoever is here could restart us as well.
async fn accept_clock(
    peer: ConnectInfo<SocketAddr>,
    State(pages): State<Pages>,
    headers: HeaderMap,
) -> Response {
    answer_clock(peer, &pages, &headers, false).await
}

/// What would be accepted. Not a parameter of the other: a daemon that does not know of dry runs must refuse this.
async fn would_accept_clock(
    peer: ConnectInfo<SocketAddr>,
    State(pages): State<Pages>,
    headers: HeaderMap,
) -> Response {
    answer_clock(peer, &pages, &headers, true).await
}

async fn answer_clock(
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    pages: &Pages,
    headers: &HeaderMap,
    dry_run: bool,
) -> Response {
    if !peer.ip().to_canonical().is_loopback() || !headers.contains_key(ASKED_BY) {
        let why = format!("only from this host, and with the header {ASKED_BY}\n");
        return (StatusCode::FORBIDDEN, why).into_response();
    }
    let mut answer = String::new();
    for (class, clock) in &pages.clocks {
        let accepted = if dry_run { "would be accepted" } else { "accepted" };
        match clock.accept(dry_run).await {
            Ok(Some(was_wrong)) => answer.push_str(&format!("{class}s: {accepted}; {was_wrong}\n")),
            Ok(None) => answer.push_str(&format!("{class}s: the clock is believed already\n")),
            Err(error) => {
                answer.push_str(&format!("{class}s: {error}\n"));
                return (StatusCode::SERVICE_UNAVAILABLE, answer).into_response();
            }
        }
    }
    answer.into_response()
}

async fn readyz(State(pages): State<Pages>) -> Response {
    let now = Instant::now();
    let of_classes = pages.reports.iter().filter_map(|(class, report)| {
        let why = report.borrow().readiness(now).err()?;
        Some(format!("{class}s: {why}\n"))
    });
    let authority = pages.authority.read();
    let of_databases = authority.iter().filter_map(|(database, report)| {
        let why = report.readiness(now).err()?;
        Some(format!("authority of database {database}: {why}\n"))
    });
    let unready: Vec<String> = of_classes.chain(of_databases).collect();
    if unready.is_empty() {
        let warnings = pages.reports.iter().flat_map(|(class, report)| {
            let warnings = report.borrow().warnings(now);
            warnings
                .into_iter()
                .map(move |warning| format!("{class}s: {warning}\n"))
        });
        let of_databases = authority.iter().filter_map(|(database, report)| {
            let warning = report.warning(now)?;
            Some(format!("authority of database {database}: {warning}\n"))
        });
        format!("ready\n{}", warnings.chain(of_databases).collect::<String>()).into_response()
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, unready.concat()).into_response()
    }
}
