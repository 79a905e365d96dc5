//! After an incident: what an id is, and whose it was.

mod asked;
mod tenure;

pub use asked::{Asked, NoId};
pub use tenure::{Held, LeaseStep, StepKind, Tenure, held_at, tenures};
