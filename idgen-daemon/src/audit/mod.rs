//! The audits: is what was given out unique, and is it still there?
//!
//! What they find is in `idgen.audit_finding` (`finding.rs`), each thing once, whoever finds it.

pub mod finding;
pub mod nightly;
pub mod probe;
pub mod table;
pub mod witness;

pub use finding::{Finding, FindingKind, FoundBy, Issuer, Recorded};
