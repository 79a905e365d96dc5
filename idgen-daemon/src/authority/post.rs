//! What the keeper of a database knows of its lease.

use idgen_core::clock::BootMs;
use idgen_core::lease::named::{Ceilings, Held, LeaseName, Tenure};
use idgen_core::lease::{Timing, Token};
use idgen_core::segment::Stripes;

/// The lease of one space and stripe.
pub(super) struct Post {
    pub(super) of: (u128, u32),
    /// Of several masters.
    pub(super) cut: Option<Stripes>,
    pub(super) tenure: Tenure,
    /// Under this token.
    pub(super) ceilings: (Option<Token>, Ceilings),
    /// What the server was told last.
    pub(super) installed: Option<(Token, BootMs)>,
}

impl Post {
    pub(super) fn new(of: (u128, u32), cut: Option<Stripes>, timing: Timing) -> Self {
        Self {
            of,
            cut,
            tenure: Tenure::new(LeaseName::authority(of.0, of.1), timing),
            ceilings: (None, Ceilings::new()),
            installed: None,
        }
    }

    /// What is held, where the server knows of it and the store was not heard to say otherwise.
    pub(super) fn in_force(&self) -> Option<Held> {
        let (held, deadline) = self.tenure.held()?;
        let known = self.installed == Some((held.token, deadline));
        (known && self.tenure.is_sure()).then(|| held.clone())
    }
}
