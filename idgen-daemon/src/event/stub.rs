//! Events that cannot be sent as they are: a stub takes their place, so that nothing is missing from a tag's sequence.

use super::Event;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use sha2::{Digest, Sha256};
use std::fmt::Write;

/// What a stub stands for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stub {
    /// Why the payload is not here.
    pub reason: StubReason,
    /// Bytes of the payload.
    pub bytes: u64,
    /// SHA-256 of the payload, in hexadecimal.
    pub sha256: String,
}

/// Why an event could not be sent as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StubReason {
    /// Longer than a message may be.
    TooLarge,
    /// The broker refused this very message.
    Refused,
}

impl Event {
    /// The same event with its payload replaced by what it was.
    #[must_use]
    pub fn into_stub(self, reason: StubReason) -> Self {
        let payload = self.payload.get().as_bytes();
        let stub = Stub {
            reason,
            bytes: payload.len() as u64,
            sha256: hex(&Sha256::digest(payload)),
        };
        Self {
            stub: Some(stub),
            payload: RawValue::from_string("{}".to_owned()).unwrap_or(self.payload),
            ..self
        }
    }
}

/// Bytes in hexadecimal, in lower case.
#[must_use]
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}
