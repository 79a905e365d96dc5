//! What the keeper asks of its server, one event for each identity, for whoever checks afterwards that no rule was
//! broken (`tests/soak`). At level debug.
//!
//! A deadline is logged before it is sent, the rest after the server has said that it was done: so whatever was in
//! force is in the log, and whatever the log says is done was done.

use idgen_core::lease::keeper::Held;
use idgen_core::lease::{BootId, Class, Mark, Token};
use std::collections::BTreeSet;
use uuid::Uuid;

/// A deadline is about to be published.
pub(super) fn publishing(class: Class, held: &Held) {
    let (class, deadline_ms) = (class.name(), held.deadline.0);
    let tokens: BTreeSet<Token> = held.leased.iter().map(|tenancy| tenancy.token).collect();
    for token in tokens {
        tracing::debug!(class, %token, deadline_ms, "publishing");
    }
}

/// The server has opened these.
pub(super) fn installed(class: Class, held: &Held) {
    let (class, boot_id) = (class.name(), Uuid::from_u128(held.boot_id.0));
    for leased in &held.leased {
        let (identity, floor_ms) = (leased.identity.0, leased.window.floor.0);
        tracing::debug!(class, identity, token = %leased.token, %boot_id, floor_ms, "installed");
    }
}

/// The server has closed these.
pub(super) fn fenced(class: Class, boot_id: BootId, marks: &[Mark]) {
    let (class, boot_id) = (class.name(), Uuid::from_u128(boot_id.0));
    for mark in marks {
        let (identity, last_ms) = (mark.claim.identity.0, mark.last.0);
        tracing::debug!(class, identity, token = %mark.claim.token, %boot_id, last_ms, "fenced");
    }
}
