//! Keeps one named lease for a process: what the core decides about its [`Tenure`], done.

use super::pinned::Pinned;
use super::store::{StoreError, StoreErrorKind};
use super::store_named::NamedStore;
use crate::random::random;
use idgen_core::clock::BootMs;
use idgen_core::lease::named::{Acquisition, Attempt, Decision, Held, LeaseName, Step, Tenure, Who};
use idgen_core::lease::{Anchor, BootId, InstanceId, Timing, Token};
use rustix::time::{ClockId, clock_gettime};
use std::time::Duration;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

/// A name that is taken is looked at so often, and a store that fails is tried again.
const LOOK_AGAIN: Duration = Duration::from_millis(500);
/// Steps in a row, at the most: give up, look, acquire, and once more where somebody else was faster.
const STEPS: u32 = 6;
/// At the end the store may be away: the lease lasts to its expiry then, and nobody waits for that.
const GIVE_UP_LIMIT: Duration = Duration::from_secs(2);
const TRY_AGAIN: Duration = Duration::from_millis(200);

/// How it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Hold {
    /// It is not held yet: why.
    Waiting(String),
    /// It is held under this token, and may be used until then.
    Held(Token, BootMs),
    /// It was held, and is not any more: why. The last word.
    Lost(String),
    /// The store refuses, and will until somebody changes something. The last word.
    Refused(String),
}

/// See the module.
pub(crate) struct Holder<S> {
    store: Pinned<S>,
    tenure: Tenure,
    who: Who,
    anchors: Vec<Anchor>,
    trouble: String,
}

impl<S: NamedStore> Holder<S> {
    /// `anchors`: what a server of the cell remembers of the store.
    pub(crate) fn new(
        store: S,
        instance: InstanceId,
        name: LeaseName,
        timing: Timing,
        anchors: Vec<Anchor>,
    ) -> Self {
        Self {
            store: Pinned::new(store),
            tenure: Tenure::new(name, timing),
            // For no shared memory, but for this run alone.
            who: Who {
                instance,
                boot_id: BootId(Uuid::new_v4().as_u128()),
            },
            anchors,
            trouble: String::new(),
        }
    }

    pub(crate) fn name(&self) -> &LeaseName {
        self.tenure.name()
    }

    /// Takes the lease, holds it until `stop`, and gives it back. One that is lost is not taken again.
    pub(crate) async fn run(mut self, told: watch::Sender<Hold>, stop: CancellationToken) {
        let mut was_held = false;
        loop {
            let hold = self.visit(was_held).await;
            was_held |= matches!(hold, Hold::Held(..));
            let last = matches!(hold, Hold::Lost(_) | Hold::Refused(_));
            told.send_replace(hold);
            if last {
                return;
            }
            tokio::select! {
                () = stop.cancelled() => break,
                () = tokio::time::sleep(self.pause()) => {}
            }
        }
        self.give_up().await;
    }

    fn pause(&self) -> Duration {
        match self.tenure.step(boot_now()) {
            Step::RestUntil(then) if self.tenure.held().is_some() => {
                Duration::from_millis(then.0.saturating_sub(boot_now().0))
            }
            _ => LOOK_AGAIN,
        }
    }

    async fn visit(&mut self, was_held: bool) -> Hold {
        for _ in 0..STEPS {
            let now = boot_now();
            if let Some(loss) = self.tenure.pass(now, self.who.boot_id) {
                return Hold::Lost(format!("its lease is lost: {}", loss.name()));
            }
            let asked = match self.tenure.step(now) {
                Step::RestUntil(_) => break,
                Step::Renew(held) => self.renew(held, now).await,
                Step::Look => match self.look(was_held).await {
                    Ok(Some(lost)) => return Hold::Lost(lost),
                    Ok(None) => Ok(()),
                    Err(error) => Err(error),
                },
            };
            if let Err(error) = asked {
                self.trouble = error.to_string();
                let for_good = matches!(error.kind, StoreErrorKind::Denied | StoreErrorKind::Sealed);
                if for_good && !was_held {
                    return Hold::Refused(format!("lease store: {error}"));
                }
                break;
            }
        }
        match self.tenure.held() {
            Some((held, deadline)) => Hold::Held(held.token, deadline),
            None => Hold::Waiting(self.trouble.clone()),
        }
    }

    async fn renew(&mut self, held: Held, reading: BootMs) -> Result<(), StoreError> {
        match self.store.renew(&held).await {
            Ok(committed) => {
                self.tenure
                    .renewed(reading, committed.revision, committed.ttl_ms, random());
                Ok(())
            }
            Err(error) => {
                // Whatever the answer was, the next look tells.
                if error.kind != StoreErrorKind::Unreachable {
                    self.tenure.doubt();
                }
                Err(error).or_else(unless_conflict)
            }
        }
    }

    /// `Some`: why what was held is not any more.
    async fn look(&mut self, was_held: bool) -> Result<Option<String>, StoreError> {
        let name = self.tenure.name().clone();
        let look = self.store.look_at(&name, &self.anchors).await?;
        let (decision, lost) = self.tenure.looked(&look, self.who, random());
        match decision {
            Decision::Hold => Ok(None),
            decision if lost.is_some() || was_held => Ok(Some(match decision {
                Decision::Wait(occupant) => format!("it was given to {}", occupant.holder.name),
                _ => "somebody has taken it away".to_owned(),
            })),
            Decision::Acquire(acquisition) => self.acquire(acquisition).await.map(|()| None),
            Decision::GiveUp(token) => self.store.store.give_up(&name, token).await.map(|_| None),
            Decision::Wait(occupant) => {
                let holder = occupant.holder;
                Err(StoreError::new(
                    StoreErrorKind::Unreachable,
                    format!("held by {} under token {}", holder.name, holder.token),
                ))
            }
        }
    }

    async fn acquire(&mut self, acquisition: Acquisition) -> Result<(), StoreError> {
        // Read before the request: an answer that comes late only shortens the lease.
        let reading = boot_now();
        let attempt = Attempt { acquisition, reading };
        match self.store.acquire(&attempt.acquisition).await {
            Ok(committed) => {
                self.tenure
                    .acquired(attempt, committed.revision, committed.ttl_ms, random());
                Ok(())
            }
            Err(error) => {
                if error.kind == StoreErrorKind::Unknown {
                    self.tenure.acquire_unknown(attempt);
                }
                Err(error).or_else(unless_conflict)
            }
        }
    }

    async fn give_up(&mut self) {
        let Some((held, _)) = self.tenure.held() else {
            return;
        };
        let (name, token) = (held.name.clone(), held.token);
        let given_up = async {
            while self.store.store.give_up(&name, token).await.is_err() {
                tokio::time::sleep(TRY_AGAIN).await;
            }
        };
        let _ = tokio::time::timeout(GIVE_UP_LIMIT, given_up).await;
    }
}

/// The row has changed meanwhile: it is looked at again at once.
fn unless_conflict(error: StoreError) -> Result<(), StoreError> {
    if error.kind == StoreErrorKind::Conflict {
        Ok(())
    } else {
        Err(error)
    }
}

/// This host's clock that counts on while the machine sleeps.
pub(crate) fn boot_now() -> BootMs {
    let now = clock_gettime(ClockId::Boottime);
    let ms = i128::from(now.tv_sec) * 1_000 + i128::from(now.tv_nsec) / 1_000_000;
    BootMs(u64::try_from(ms).unwrap_or(0))
}
