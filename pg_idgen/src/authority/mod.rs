//! Who may grant ranges on this server: `idgen.authority = local | leased`.
//!
//! Local: whoever has the row and is a primary. Leased: under the lease of the database's space, up to the ceiling
//! of the tag; both come from the daemon, which has them from the lease store. The rules are in
//! `idgen_core::segment::authority`, the words in `shmem::authority`.

mod adopt;
pub mod anchor;
mod control;
pub mod home;
mod margin;
pub mod settle;
mod view;
mod wanted;
pub mod witness;

use crate::clock;
use crate::guc;
use crate::segment::failure::Failure;
use crate::shmem::{LeasedPermit, SegmentSlot, Shared};
use idgen_core::lease::Token;
use idgen_core::segment::authority::Stretch;

/// What one grant may do.
#[derive(Clone, Copy, Debug)]
pub enum Permit {
    Local,
    Leased(LeasedPermit),
}

impl Permit {
    /// For a grant of this tag that begins now.
    ///
    /// # Errors
    /// [`Failure::NoAuthority`]: authority is leased, and there is no lease.
    pub fn now(shared: &Shared, slot: &SegmentSlot) -> Result<Self, Failure> {
        if guc::authority() == guc::Authority::Local {
            return Ok(Self::Local);
        }
        let permit = shared.permit(slot, clock::boot());
        permit.map(Self::Leased).ok_or(Failure::NoAuthority)
    }

    /// `None`: authority is local.
    pub fn stretch(&self) -> Option<Stretch> {
        match self {
            Self::Local => None,
            Self::Leased(permit) => Some(permit.stretch),
        }
    }

    /// `None`: authority is local.
    pub fn token(&self) -> Option<Token> {
        match self {
            Self::Local => None,
            Self::Leased(permit) => Some(permit.token),
        }
    }
}
