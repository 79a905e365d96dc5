//! Requests as text, which is the same in every store: what approvals name by its digest.

use super::store::{StoreError, StoreErrorKind};
use idgen_core::clock::UnixMs;
use idgen_core::lease::approval::{Act, Ask, RequestId};
use idgen_core::lease::{CellId, Class, Epoch, EpochNonce, Identity, Revision, StoreIdentity, Token};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

type Result<T> = std::result::Result<T, StoreError>;

#[derive(Serialize, Deserialize)]
struct AskText {
    request: Uuid,
    cell_id: Uuid,
    act: ActText,
    reason: String,
    by: String,
    at_ms: u64,
    expires_ms: u64,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum ActText {
    ForceRelease {
        class: String,
        identity: u16,
        token_epoch: u64,
        token_revision: u64,
        generation: u64,
    },
    AdvanceEpoch {
        epoch: u64,
        epoch_nonce: Uuid,
        identity: String,
        formats: Option<String>,
    },
    NeedApprovals {
        approvals: u32,
    },
}

impl ActText {
    fn of(act: &Act) -> Self {
        match act {
            Act::ForceRelease {
                class,
                identity,
                token,
                generation,
            } => Self::ForceRelease {
                class: class.name().to_owned(),
                identity: identity.0,
                token_epoch: token.epoch.0,
                token_revision: token.revision.0,
                generation: *generation,
            },
            Act::AdvanceEpoch {
                from: (epoch, nonce),
                identity,
                formats,
            } => Self::AdvanceEpoch {
                epoch: epoch.0,
                epoch_nonce: Uuid::from_u128(nonce.0),
                identity: identity.to_string(),
                formats: formats.clone(),
            },
            Act::Need { approvals } => Self::NeedApprovals {
                approvals: *approvals,
            },
        }
    }

    fn act(self) -> Option<Act> {
        Some(match self {
            Self::ForceRelease {
                class,
                identity,
                token_epoch,
                token_revision,
                generation,
            } => Act::ForceRelease {
                class: Class::ALL.into_iter().find(|known| known.name() == class)?,
                identity: Identity(identity),
                token: Token {
                    epoch: Epoch(token_epoch),
                    revision: Revision(token_revision),
                },
                generation,
            },
            Self::AdvanceEpoch {
                epoch,
                epoch_nonce,
                identity,
                formats,
            } => Act::AdvanceEpoch {
                from: (Epoch(epoch), EpochNonce(epoch_nonce.as_u128())),
                identity: StoreIdentity::new(&identity)?,
                formats,
            },
            Self::NeedApprovals { approvals } => Act::Need { approvals },
        })
    }
}

/// The text of a request.
pub(super) fn text_of(ask: &Ask) -> Result<String> {
    let text = AskText {
        request: Uuid::from_u128(ask.id.0),
        cell_id: Uuid::from_u128(ask.cell_id.0),
        act: ActText::of(&ask.act),
        reason: ask.reason.clone(),
        by: ask.by.clone(),
        at_ms: ask.at.0,
        expires_ms: ask.expires.0,
    };
    serde_json::to_string(&text).map_err(|error| broken(&format!("write a request: {error}")))
}

/// What a text asks for. `id`: where it was found; a text that was put elsewhere is none.
pub(super) fn read_text(id: RequestId, text: &str) -> Result<Ask> {
    let read: AskText =
        serde_json::from_str(text).map_err(|error| broken(&format!("read a request: {error}")))?;
    if read.request.as_u128() != id.0 {
        return Err(broken("a request is under the name of another one"));
    }
    Ok(Ask {
        id,
        cell_id: CellId(read.cell_id.as_u128()),
        act: read
            .act
            .act()
            .ok_or_else(|| broken("a request asks for nothing that is known"))?,
        reason: read.reason,
        by: read.by,
        at: UnixMs(read.at_ms),
        expires: UnixMs(read.expires_ms),
    })
}

fn broken(message: &str) -> StoreError {
    StoreError::new(StoreErrorKind::Denied, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_what_its_text_says_and_nowhere_else() {
        let force = Act::ForceRelease {
            class: Class::Shard,
            identity: Identity(17),
            token: Token {
                epoch: Epoch(3),
                revision: Revision(812),
            },
            generation: 4,
        };
        let advance = Act::AdvanceEpoch {
            from: (Epoch(3), EpochNonce(9)),
            identity: StoreIdentity::new("etcd/2").unwrap(),
            formats: Some("classic".to_owned()),
        };
        for act in [force, advance, Act::Need { approvals: 2 }] {
            let ask = Ask {
                id: RequestId(7),
                cell_id: CellId(1),
                act,
                reason: "its host \"burns\"".to_owned(),
                by: "somebody".to_owned(),
                at: UnixMs(5),
                expires: UnixMs(6),
            };
            let text = text_of(&ask).unwrap();
            assert_eq!(read_text(ask.id, &text).unwrap(), ask, "{text}");
            assert!(read_text(RequestId(8), &text).is_err());
        }
        assert!(read_text(RequestId(7), "{}").is_err());
    }
}
