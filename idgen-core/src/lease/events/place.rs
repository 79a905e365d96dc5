//! Keys of a store, and what is in them.

use super::super::class::Class;
use super::super::token::{BootId, Epoch, Identity, InstanceId, Token};
use crate::clock::UnixMs;
use core::fmt::{self, Write};
use sha2::{Digest, Sha256};

/// No name of ours is longer. One that is cannot be part of an index, and stops nothing: it is shortened.
const KEY_BYTES_MAX: usize = 512;

/// What a key is of. A row of the embedded store that says both is two of these.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Place {
    /// The cell.
    Cell,
    /// How far an identity was granted.
    HighWater(Class, Identity),
    /// Who holds it.
    Holder(Class, Identity),
    /// What an operator has ordered of its holder.
    Order(Class, Identity),
    /// Who holds a name.
    Name(String),
    /// A ceiling of a name, `NAME:KEY`.
    Ceiling(String),
    /// How an epoch began.
    Epoch(u64),
    /// A stripe of a space, `SPACE/INDEX`.
    Stripe(String),
    /// What is asked of people.
    Ask(String),
    /// What came of that: a request is used once.
    Used(String),
    /// Which server is to have a shard.
    Assigned(String),
    /// Whether a server is drained.
    Drain(String),
    /// What a store keeps for itself: counts of its keys.
    Bookkeeping(String),
    /// Anything else, such as a later release may keep.
    Other(String),
}

impl Place {
    /// By its name below the store's prefix, as etcd has it. The embedded store's rows are told by the same names.
    #[must_use]
    pub fn of_key(key: &str) -> Self {
        Self::of_bytes(key.as_bytes())
    }

    /// By its name below the store's prefix, which may be anything that somebody has put there. One that is too long, or no
    /// text, is told by its beginning and its hash, so that no two keys are one place.
    #[must_use]
    pub fn of_bytes(key: &[u8]) -> Self {
        let clean = str::from_utf8(key)
            .ok()
            .filter(|key| key.len() <= KEY_BYTES_MAX && !key.contains('\0'));
        let key = clean.map_or_else(|| shortened(key), str::to_owned);
        // "w/05/hw" is not the worker 5.
        Self::known(&key)
            .filter(|place| place.key() == key)
            .unwrap_or(Self::Other(key))
    }

    fn known(key: &str) -> Option<Self> {
        let (folder, rest) = key.split_once('/').unwrap_or((key, ""));
        let named = |of: fn(String) -> Self| (!rest.is_empty()).then(|| of(rest.to_owned()));
        match folder {
            "cell" if rest.is_empty() => Some(Self::Cell),
            "shards" if rest.is_empty() => Some(Self::Bookkeeping(key.to_owned())),
            "w" => Self::of_identity(Class::Worker, rest),
            "s" => Self::of_identity(Class::Shard, rest),
            "order" => {
                let (letter, identity) = rest.split_once('/')?;
                let class = match letter {
                    "w" => Class::Worker,
                    "s" => Class::Shard,
                    _ => return None,
                };
                Some(Self::Order(class, Identity(identity.parse().ok()?)))
            }
            "epoch" => rest.parse().ok().map(Self::Epoch),
            "stripe" => named(Self::Stripe),
            "request" => match rest.split_once('/') {
                Some((request, "ask")) => Some(Self::Ask(request.to_owned())),
                Some((request, "done")) => Some(Self::Used(request.to_owned())),
                _ => None,
            },
            "drain" => named(Self::Drain),
            "map" => Some(Self::Assigned(rest.strip_prefix("assigned/")?.to_owned())),
            "named" => match rest.split_once('/') {
                Some(("holder", name)) => Some(Self::Name(name.to_owned())),
                Some(("ceiling", ceiling)) => Some(Self::Ceiling(ceiling.to_owned())),
                Some(("row", _)) => Some(Self::Bookkeeping(key.to_owned())),
                None if rest == "made" => Some(Self::Bookkeeping(key.to_owned())),
                _ => None,
            },
            _ => None,
        }
    }

    fn of_identity(class: Class, rest: &str) -> Option<Self> {
        let (identity, part) = rest.split_once('/')?;
        let identity = Identity(identity.parse().ok()?);
        match part {
            "hw" => Some(Self::HighWater(class, identity)),
            "holder" => Some(Self::Holder(class, identity)),
            _ => None,
        }
    }

    /// Its name below the store's prefix.
    #[must_use]
    pub fn key(&self) -> String {
        let letter = |class: &Class| match class {
            Class::Worker => 'w',
            Class::Shard => 's',
        };
        match self {
            Self::Cell => "cell".to_owned(),
            Self::HighWater(class, identity) => format!("{}/{identity}/hw", letter(class)),
            Self::Holder(class, identity) => format!("{}/{identity}/holder", letter(class)),
            Self::Order(class, identity) => format!("order/{}/{identity}", letter(class)),
            Self::Name(name) => format!("named/holder/{name}"),
            Self::Ceiling(ceiling) => format!("named/ceiling/{ceiling}"),
            Self::Epoch(epoch) => format!("epoch/{epoch:020}"),
            Self::Stripe(stripe) => format!("stripe/{stripe}"),
            Self::Ask(request) => format!("request/{request}/ask"),
            Self::Used(request) => format!("request/{request}/done"),
            Self::Assigned(shard) => format!("map/assigned/{shard}"),
            Self::Drain(server) => format!("drain/{server}"),
            Self::Bookkeeping(key) | Self::Other(key) => key.clone(),
        }
    }

    /// What its events are about. The two keys of an identity share one.
    #[must_use]
    pub fn subject(&self) -> String {
        self.to_string()
    }

    /// Is its version the one that counts the changes of its subject? That of a holder begins anew with each grant.
    #[must_use]
    pub const fn counts(&self) -> bool {
        !matches!(self, Self::Holder(..))
    }
}

fn shortened(key: &[u8]) -> String {
    const BEGINNING: usize = 128;
    let beginning = key.get(..BEGINNING).unwrap_or(key);
    let mut name = String::from_utf8_lossy(beginning).replace('\0', "\u{fffd}");
    name.push_str("...sha256:");
    for byte in Sha256::digest(key) {
        let _ = write!(name, "{byte:02x}");
    }
    name
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cell => f.write_str("cell"),
            Self::HighWater(class, identity) | Self::Holder(class, identity) => {
                write!(f, "{class} {identity}")
            }
            Self::Order(class, identity) => write!(f, "order on {class} {identity}"),
            Self::Name(name) => write!(f, "name {name}"),
            Self::Ceiling(ceiling) => write!(f, "ceiling {ceiling}"),
            Self::Epoch(epoch) => write!(f, "epoch {epoch}"),
            Self::Stripe(stripe) => write!(f, "stripe {stripe}"),
            Self::Ask(request) => write!(f, "request {request}"),
            Self::Used(request) => write!(f, "use of request {request}"),
            Self::Assigned(shard) => write!(f, "place of shard {shard}"),
            Self::Drain(server) => write!(f, "server {server}"),
            Self::Bookkeeping(key) | Self::Other(key) => write!(f, "key {key}"),
        }
    }
}

/// `hw`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HighWater {
    /// Counts grants; 0: never leased.
    pub generation: u64,
    /// Highest time granted, or exact high water.
    pub ceiling: UnixMs,
    /// It is the high water of a clean release.
    pub exact: bool,
}

/// `holder`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holding {
    /// The daemon's run.
    pub instance: InstanceId,
    /// Its name, for people.
    pub name: String,
    /// Under which token.
    pub token: Token,
    /// The shared memory that it is for.
    pub boot_id: BootId,
    /// How long it lasts from its last change, where the store says so.
    pub ttl_ms: Option<u64>,
    /// When it was changed last, by the clock of whoever did.
    pub put_at: Option<UnixMs>,
    /// When it ends, where the store says so.
    pub expires_at: Option<UnixMs>,
}

/// `order`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ordered {
    /// The lease that ends by it.
    pub token: Token,
    /// Who has ordered it.
    pub by: String,
    /// Why.
    pub reason: String,
    /// The request that it was a part of, where the identity was taken by force.
    pub request: Option<String>,
}

/// What is in a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// Of [`Place::HighWater`].
    HighWater(HighWater),
    /// Of [`Place::Holder`] and [`Place::Name`].
    Holding(Holding),
    /// The same, where a row stays when nobody holds it.
    Vacant,
    /// Of [`Place::Order`].
    Order(Ordered),
    /// Of [`Place::Cell`].
    Cell {
        /// Its epoch.
        epoch: Epoch,
        /// The plan of formats of its workers.
        formats: String,
        /// Why it is sealed; `None`: it is open.
        sealed: Option<String>,
        /// How many people have to approve; `None`: nobody has decided.
        approvals: Option<u32>,
    },
    /// Of [`Place::Epoch`].
    Epoch {
        /// Who advanced it.
        by: String,
        /// Why.
        reason: String,
    },
    /// Of [`Place::Stripe`].
    Stripe {
        /// Whose it is, for people.
        server: String,
        /// Who claimed it.
        by: String,
        /// A database grants under it.
        joined: bool,
        /// Why it was released, if it is.
        released: Option<String>,
    },
    /// Of [`Place::Ask`].
    Asked {
        /// Who asked.
        by: String,
        /// Why.
        reason: String,
        /// What, as JSON.
        act: String,
    },
    /// Of [`Place::Used`].
    Used {
        /// What came of it.
        outcome: String,
        /// Who had approved it, where the store says so.
        approved_by: Vec<String>,
    },
    /// Of [`Place::Assigned`].
    Assigned {
        /// Which server is to have it.
        server: String,
        /// Who says so.
        by: String,
        /// Why.
        reason: String,
    },
    /// Of [`Place::Drain`].
    Drain {
        /// It is drained; else it was resumed.
        drained: bool,
        /// Who says so.
        by: String,
        /// Why.
        reason: String,
    },
    /// Of [`Place::Ceiling`].
    Ceiling(i64),
    /// Of no interest, or not to be read.
    Opaque,
}
