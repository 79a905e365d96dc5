//! Who may say that a wall clock that was set is right now: the kernel, and an operator.

use crate::error::{Error, Result};
use idgen_core::lease::KernelClock;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};

/// An operator's request may have to wait for one look at a server that does not answer.
pub const ANSWER_LIMIT: Duration = Duration::from_secs(10);

/// Requests that may wait: there is hardly ever a second operator.
const WAITING_MAX: usize = 4;

/// Lets an operator accept the clock of one keeper's server.
#[derive(Clone, Debug)]
pub struct AcceptClock(mpsc::Sender<Answer>);

/// The keeper's end of it.
#[derive(Debug)]
pub struct AcceptRequests(mpsc::Receiver<Answer>);

/// Takes by how many ms the clock was set that is believed from now on; `None`: it was believed already.
type Answer = oneshot::Sender<Option<i64>>;

/// Both ends.
#[must_use]
pub fn accept_channel() -> (AcceptClock, AcceptRequests) {
    let (requests, waiting) = mpsc::channel(WAITING_MAX);
    (AcceptClock(requests), AcceptRequests(waiting))
}

impl AcceptClock {
    /// Believes the clock again, from the next reading on. Returns by how many ms it was set; `None`: it was
    /// believed all the time, and nothing has changed.
    pub async fn accept(&self) -> Result<Option<i64>> {
        let (answer, answered) = oneshot::channel();
        let asking = async {
            self.0.send(answer).await.ok()?;
            answered.await.ok()
        };
        match tokio::time::timeout(ANSWER_LIMIT, asking).await {
            Ok(Some(stepped_by_ms)) => Ok(stepped_by_ms),
            Ok(None) => Err(Error::retry("the lease keeper has ended")),
            Err(_) => Err(Error::retry(
                "the lease keeper waits for its server; nothing was accepted yet",
            )),
        }
    }
}

impl AcceptRequests {
    /// The next request; never comes when nobody can ask any more.
    pub(super) async fn next(&mut self) -> Answer {
        match self.0.recv().await {
            Some(answer) => answer,
            None => std::future::pending().await,
        }
    }
}

/// What the kernel of this host says of its clock; `None` where it says nothing.
#[cfg(target_os = "linux")]
pub(super) fn kernel_clock() -> Option<KernelClock> {
    use idgen_core::clock::UnixMs;
    use rtime_clock::adjtime::{Timex, adjtimex};
    use std::time::{SystemTime, UNIX_EPOCH};

    /// The clock state TIME_ERROR of adjtimex(2): not synchronised.
    const TIME_ERROR: i32 = 5;
    /// The status bit STA_UNSYNC.
    const STA_UNSYNC: i32 = 0x40;

    // All zero is a question: nothing is changed, and no privilege is needed.
    let mut timex = Timex::new();
    let state = adjtimex(&mut timex).ok()?;
    let wall = SystemTime::now().duration_since(UNIX_EPOCH).ok()?;
    Some(KernelClock {
        synchronised: state != TIME_ERROR && timex.0.status & STA_UNSYNC == 0,
        error_us_max: u64::try_from(timex.0.maxerror).ok()?,
        wall: UnixMs(u64::try_from(wall.as_millis()).ok()?),
    })
}

/// What the kernel of this host says of its clock: nothing that we could read.
#[cfg(not(target_os = "linux"))]
pub(super) fn kernel_clock() -> Option<KernelClock> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_request_is_answered_by_whoever_keeps_the_lease() {
        let (accept, mut requests) = accept_channel();
        let keeper = async { requests.next().await.send(Some(-7)) };
        let (accepted, told) = tokio::join!(accept.accept(), keeper);
        assert_eq!(accepted.unwrap(), Some(-7));
        told.unwrap();
        drop(requests);
        assert!(accept.accept().await.is_err(), "the keeper has ended");
    }

    #[tokio::test(start_paused = true)]
    async fn a_keeper_that_is_busy_is_not_waited_for_for_ever() {
        let (accept, _requests) = accept_channel();
        let error = accept.accept().await.unwrap_err();
        assert!(error.to_string().contains("nothing was accepted"), "{error}");
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn the_kernel_is_asked_without_privilege_and_shows_the_time() {
        let before = std::time::SystemTime::now();
        let kernel = kernel_clock().expect("adjtimex answers");
        let wall = std::time::UNIX_EPOCH + Duration::from_millis(kernel.wall.0 + 1);
        assert!(wall >= before);
    }
}
