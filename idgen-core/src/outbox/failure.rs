//! What becomes of a message that could not be sent.
//!
//! There is one rule: whatever fails, everything that is in flight is given up and sent anew from the table, in order. What
//! differs is only how long to wait before, and whether this very row is at fault.

/// Why a row is sent as a stub.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Poison {
    /// Longer than a message may be.
    TooLarge,
    /// The broker refused this very message.
    Refused,
}

/// What a client or a broker says of a message, or of everything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendFault {
    /// The message is longer than the broker takes.
    MessageTooLarge,
    /// The broker finds this message wrong.
    InvalidMessage,
    /// There is no such topic, or it has no such partition any more.
    NoTopic,
    /// We may not write there, or may not be idempotent.
    NotAllowed,
    /// Who we are is not believed.
    NotBelieved,
    /// The producer can do nothing any more.
    Fatal,
    /// No answer although a broker is connected.
    Silence,
    /// Anything else.
    Other,
}

/// What to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// The row that failed is sent as a stub from now on.
    pub stub: Option<Poison>,
    /// It would fail for every row: somebody has to mend something, so wait longer each time, and say so.
    pub is_everybodys: bool,
}

impl SendFault {
    /// What to do about it.
    #[must_use]
    pub fn verdict(self) -> Verdict {
        let stub = match self {
            Self::MessageTooLarge => Some(Poison::TooLarge),
            Self::InvalidMessage => Some(Poison::Refused),
            _ => None,
        };
        Verdict {
            stub,
            is_everybodys: matches!(self, Self::NoTopic | Self::NotAllowed | Self::NotBelieved),
        }
    }

    /// Which of several reasons that come together says most: what is wrong with one message ends the producer, which then
    /// fails all the others without a reason of their own.
    #[must_use]
    pub fn says(self) -> u8 {
        match (self.verdict(), self) {
            (Verdict { stub: Some(_), .. }, _) => 3,
            (
                Verdict {
                    is_everybodys: true, ..
                },
                _,
            ) => 2,
            (_, Self::Fatal | Self::Silence) => 1,
            _ => 0,
        }
    }

    /// As metrics name it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::MessageTooLarge => "too_large",
            Self::InvalidMessage => "refused",
            Self::NoTopic => "no_topic",
            Self::NotAllowed => "not_allowed",
            Self::NotBelieved => "not_believed",
            Self::Fatal => "fatal",
            Self::Silence => "silence",
            Self::Other => "other",
        }
    }

    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::MessageTooLarge,
        Self::InvalidMessage,
        Self::NoTopic,
        Self::NotAllowed,
        Self::NotBelieved,
        Self::Fatal,
        Self::Silence,
        Self::Other,
    ];
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    #[test]
    fn the_reason_of_one_message_says_more_than_what_follows_from_it() {
        let order = [
            SendFault::Other,
            SendFault::Fatal,
            SendFault::NotAllowed,
            SendFault::MessageTooLarge,
        ];
        assert!(order.is_sorted_by(|less, more| less.says() < more.says()));
    }

    #[test]
    fn only_what_is_wrong_with_one_message_makes_a_stub_of_it() {
        for fault in SendFault::ALL {
            let verdict = fault.verdict();
            let of_one = matches!(fault, SendFault::MessageTooLarge | SendFault::InvalidMessage);
            assert_eq!(verdict.stub.is_some(), of_one, "{fault:?}");
            assert!(verdict.stub.is_none() || !verdict.is_everybodys, "{fault:?}");
        }
    }
}
