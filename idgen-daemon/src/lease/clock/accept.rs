//! An operator says that a clock is right.

use crate::error::{Error, Result};
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};

/// An operator's request may have to wait for one look at a server that does not answer.
pub const ANSWER_LIMIT: Duration = Duration::from_secs(10);

/// Requests that may wait: there is hardly ever a second operator.
const WAITING_MAX: usize = 4;

/// Lets an operator accept the clock of one keeper's server.
#[derive(Clone, Debug)]
pub struct AcceptClock(mpsc::Sender<AcceptRequest>);

/// The keeper's end of it.
#[derive(Debug)]
pub struct AcceptRequests(mpsc::Receiver<AcceptRequest>);

/// What was wrong with the clock that is believed from now on; `None`: nothing. Or why nothing was accepted.
type Accepted = std::result::Result<Option<String>, String>;

/// What an operator asks.
#[derive(Debug)]
pub(in crate::lease) struct AcceptRequest {
    /// Only what would be accepted.
    pub dry_run: bool,
    /// Whoever asked may have gone.
    pub answer: oneshot::Sender<Accepted>,
}

/// Both ends.
#[must_use]
pub fn accept_channel() -> (AcceptClock, AcceptRequests) {
    let (requests, waiting) = mpsc::channel(WAITING_MAX);
    (AcceptClock(requests), AcceptRequests(waiting))
}

impl AcceptClock {
    /// Believes the clock again, as it is read after this was asked. Returns what was found wrong with it; `None`: it was
    /// believed all the time, and nothing has changed. Of a dry run, the same without believing it.
    pub async fn accept(&self, dry_run: bool) -> Result<Option<String>> {
        let (answer, answered) = oneshot::channel();
        let asking = async {
            self.0.send(AcceptRequest { dry_run, answer }).await.ok()?;
            answered.await.ok()
        };
        match tokio::time::timeout(ANSWER_LIMIT, asking).await {
            Ok(Some(Ok(was_wrong))) => Ok(was_wrong),
            Ok(Some(Err(why))) => Err(Error::retry(format!("{why}; nothing was accepted"))),
            Ok(None) => Err(Error::retry("the lease keeper has ended")),
            Err(_) => Err(Error::retry(
                "the lease keeper waits for its server; nothing was accepted yet",
            )),
        }
    }
}

impl AcceptRequests {
    /// The next request; never comes when nobody can ask any more.
    pub(in crate::lease) async fn next(&mut self) -> AcceptRequest {
        match self.0.recv().await {
            Some(request) => request,
            None => std::future::pending().await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_request_is_answered_by_whoever_keeps_the_lease() {
        let (accept, mut requests) = accept_channel();
        let keeper = async {
            let tried = requests.next().await;
            assert!(tried.dry_run);
            tried.answer.send(Ok(Some("slow".to_owned()))).unwrap();
            let asked = requests.next().await;
            assert!(!asked.dry_run);
            asked.answer.send(Err("no answer".to_owned())).unwrap();
        };
        let operator = async { (accept.accept(true).await, accept.accept(false).await) };
        let ((accepted, refused), ()) = tokio::join!(operator, keeper);
        assert_eq!(accepted.unwrap().as_deref(), Some("slow"));
        let refused = refused.unwrap_err().to_string();
        assert!(refused.contains("no answer; nothing was accepted"), "{refused}");
        drop(requests);
        assert!(accept.accept(false).await.is_err(), "the keeper has ended");
    }

    #[tokio::test(start_paused = true)]
    async fn a_keeper_that_is_busy_is_not_waited_for_for_ever() {
        let (accept, _requests) = accept_channel();
        let error = accept.accept(false).await.unwrap_err();
        assert!(error.to_string().contains("nothing was accepted"), "{error}");
    }
}
