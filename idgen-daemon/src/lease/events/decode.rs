//! Values of keys and rows, as the rules of the trail know them. One that cannot be read stops nothing.
//!
//! The rows of the embedded store are told as the keys of an etcd would be, so that there is one form of them.

use idgen_core::clock::UnixMs;
use idgen_core::lease::events::{HighWater, Holding, Ordered, Place, Seen, Value};
use idgen_core::lease::{BootId, Class, Epoch, Identity, InstanceId, Revision, Token};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::json;
use std::time::UNIX_EPOCH;
use uuid::Uuid;

#[derive(Deserialize)]
struct HighWaterFields {
    generation: u64,
    ceiling_ms: u64,
    exact: bool,
}

#[derive(Deserialize)]
struct HolderFields {
    holder: Uuid,
    holder_name: String,
    token_epoch: u64,
    /// Where the key does not say it by its making.
    token_revision: Option<u64>,
    boot_id: Uuid,
    ttl_ms: Option<u64>,
    put_at_ms: Option<u64>,
    expires_at_ms: Option<u64>,
}

#[derive(Deserialize)]
struct CellFields {
    epoch: u64,
    worker_format: String,
    sealed_reason: Option<String>,
    approvals_needed: Option<u32>,
}

#[derive(Deserialize)]
struct EpochFields {
    by: String,
    reason: String,
}

#[derive(Deserialize)]
struct StripeFields {
    name: String,
    by: String,
    joined_at_ms: Option<u64>,
    release_reason: Option<String>,
}

#[derive(Deserialize)]
struct CeilingFields {
    ceiling: i64,
}

#[derive(Deserialize)]
struct OrderFields {
    token_epoch: u64,
    token_revision: u64,
    by: String,
    reason: String,
    request: Option<Uuid>,
}

#[derive(Deserialize)]
struct AskFields {
    act: serde_json::Value,
    by: String,
    reason: String,
}

#[derive(Deserialize)]
struct UsedFields {
    outcome: String,
    #[serde(default)]
    approved_by: Vec<String>,
}

#[derive(Deserialize)]
struct DrainFields {
    drained: bool,
    by: String,
    reason: String,
}

#[derive(Deserialize)]
struct AssignedFields {
    server: String,
    by: String,
    reason: String,
}

fn read<T: DeserializeOwned>(text: &str) -> Option<T> {
    serde_json::from_str(text).ok()
}

/// What is in a key that was made at this revision.
pub(crate) fn value_of(place: &Place, made: Revision, text: &str) -> Value {
    let value = match place {
        Place::HighWater(..) => read(text).map(high_water),
        Place::Holder(..) | Place::Name(_) if text == "null" => Some(Value::Vacant),
        Place::Holder(..) | Place::Name(_) => read(text).map(|fields| holding(fields, made)),
        Place::Cell => read(text).map(|cell: CellFields| Value::Cell {
            epoch: Epoch(cell.epoch),
            formats: cell.worker_format,
            sealed: cell.sealed_reason,
            approvals: cell.approvals_needed,
        }),
        Place::Epoch(_) => read(text).map(|EpochFields { by, reason }| Value::Epoch { by, reason }),
        Place::Stripe(_) => read(text).map(|stripe: StripeFields| Value::Stripe {
            server: stripe.name,
            by: stripe.by,
            joined: stripe.joined_at_ms.is_some(),
            released: stripe.release_reason,
        }),
        Place::Ceiling(_) => read(text).map(|CeilingFields { ceiling }| Value::Ceiling(ceiling)),
        Place::Order(..) => read(text).map(ordered),
        Place::Ask(_) => read(text).map(|AskFields { act, by, reason }| Value::Asked {
            act: act.to_string(),
            by,
            reason,
        }),
        Place::Used(_) => read(text).map(|used: UsedFields| Value::Used {
            outcome: used.outcome,
            approved_by: used.approved_by,
        }),
        Place::Assigned(_) => {
            read(text).map(|AssignedFields { server, by, reason }| Value::Assigned { server, by, reason })
        }
        Place::Drain(_) => {
            read(text).map(|DrainFields { drained, by, reason }| Value::Drain { drained, by, reason })
        }
        Place::Bookkeeping(_) | Place::Other(_) => None,
    };
    value.unwrap_or(Value::Opaque)
}

fn high_water(fields: HighWaterFields) -> Value {
    Value::HighWater(HighWater {
        generation: fields.generation,
        ceiling: UnixMs(fields.ceiling_ms),
        exact: fields.exact,
    })
}

fn holding(fields: HolderFields, made: Revision) -> Value {
    Value::Holding(Holding {
        instance: InstanceId(fields.holder.as_u128()),
        name: fields.holder_name,
        token: Token {
            epoch: Epoch(fields.token_epoch),
            revision: fields.token_revision.map_or(made, Revision),
        },
        boot_id: BootId(fields.boot_id.as_u128()),
        ttl_ms: fields.ttl_ms,
        put_at: fields.put_at_ms.map(UnixMs),
        expires_at: fields.expires_at_ms.map(UnixMs),
    })
}

fn ordered(fields: OrderFields) -> Value {
    Value::Order(Ordered {
        token: Token {
            epoch: Epoch(fields.token_epoch),
            revision: Revision(fields.token_revision),
        },
        by: fields.by,
        reason: fields.reason,
        request: fields.request.map(|request| request.to_string()),
    })
}

/// A key of an etcd below its prefix; none for what is no matter of the trail.
pub(crate) fn key_places(key: &[u8]) -> Option<Place> {
    // What servers show of themselves, all the time, on leases of their own.
    let shown = ["beacon/", "map/server/"]
        .iter()
        .any(|folder| key.starts_with(folder.as_bytes()));
    (!shown).then(|| Place::of_bytes(key))
}

/// A row of the embedded store, as `to_jsonb` has it, as the keys that it would be in an etcd.
pub(crate) fn row_places(table: &str, row: &serde_json::Value) -> Vec<(Place, Seen)> {
    let row = Columns(row);
    match (table, row.identity()) {
        ("lease", Some((class, identity))) => {
            let high_water = row.only(&["generation", "ceiling_ms", "exact"]);
            vec![
                row.counted(Place::HighWater(class, identity), high_water),
                row.counted(Place::Holder(class, identity), row.holder()),
            ]
        }
        ("lease_order", Some((class, identity))) => {
            let order = json!({"token_epoch": row.of("token_epoch"), "token_revision": row.of("token_revision"),
                               "by": row.of("ordered_by"), "reason": row.of("reason"), "request": row.of("request_id")});
            vec![row.seen(Place::Order(class, identity), order)]
        }
        ("named_lease", _) => {
            let place = Place::of_key(&format!("named/holder/{}", row.text("name")));
            vec![row.counted(place, row.holder())]
        }
        ("named_ceiling", _) => {
            let ceiling = format!("{}:{}", row.text("name"), row.text("key"));
            let place = Place::of_key(&format!("named/ceiling/{ceiling}"));
            vec![row.seen(place, row.only(&["ceiling"]))]
        }
        ("cell", _) => {
            let cell = row.only(&["epoch", "worker_format", "sealed_reason", "approvals_needed"]);
            vec![row.seen(Place::Cell, cell)]
        }
        ("epoch", _) => {
            let epoch = json!({"by": row.of("changed_by"), "reason": row.of("reason")});
            vec![row.seen(Place::Epoch(row.number("epoch")), epoch)]
        }
        ("stripe", _) => vec![row.stripe()],
        ("request", _) => row.request(),
        ("shard_assignment", _) => {
            let assigned =
                json!({"server": row.of("server"), "by": row.of("assigned_by"), "reason": row.of("reason")});
            vec![row.seen(Place::Assigned(row.number("shard").to_string()), assigned)]
        }
        ("server_drain", _) => {
            let drain =
                json!({"drained": row.of("drained"), "by": row.of("said_by"), "reason": row.of("reason")});
            vec![row.seen(Place::of_key(&format!("drain/{}", row.text("server"))), drain)]
        }
        _ => vec![row.seen(Place::Other(table.to_owned()), row.0.clone())],
    }
}

/// The columns of a row.
struct Columns<'r>(&'r serde_json::Value);

impl Columns<'_> {
    fn of(&self, name: &str) -> &serde_json::Value {
        &self.0[name]
    }

    fn text(&self, name: &str) -> String {
        self.of(name).as_str().unwrap_or_default().to_owned()
    }

    fn number(&self, name: &str) -> u64 {
        self.of(name).as_u64().unwrap_or_default()
    }

    fn at_ms(&self, name: &str) -> Option<u64> {
        self.of(name).as_str().and_then(unix_ms)
    }

    fn only(&self, names: &[&str]) -> serde_json::Value {
        let pair = |name: &&str| ((*name).to_owned(), self.of(name).clone());
        serde_json::Value::Object(names.iter().map(pair).collect())
    }

    fn identity(&self) -> Option<(Class, Identity)> {
        let class = Class::ALL
            .into_iter()
            .find(|class| class.name() == *self.of("kind"))?;
        Some((class, Identity(u16::try_from(self.number("identity")).ok()?)))
    }

    fn holder(&self) -> serde_json::Value {
        if self.of("holder").is_null() {
            return serde_json::Value::Null;
        }
        let mut holder = self.only(&[
            "holder",
            "holder_name",
            "token_epoch",
            "token_revision",
            "boot_id",
        ]);
        holder["expires_at_ms"] = json!(self.at_ms("expires_at"));
        holder
    }

    fn stripe(&self) -> (Place, Seen) {
        let stripe = json!({"name": self.of("server_name"), "by": self.of("claimed_by"),
                            "joined_at_ms": self.at_ms("joined_at"), "release_reason": self.of("release_reason")});
        let place = Place::Stripe(format!("{}/{}", self.text("space_id"), self.number("stripe")));
        self.seen(place, stripe)
    }

    /// What is asked, and what came of it.
    fn request(&self) -> Vec<(Place, Seen)> {
        let request = self.text("request_id");
        // The text is JSON of its own.
        let ask = serde_json::from_str(&self.text("ask")).unwrap_or_default();
        let mut places = vec![self.seen(Place::Ask(request.clone()), ask)];
        if !self.of("outcome").is_null() {
            places.push(self.seen(Place::Used(request), self.only(&["outcome"])));
        }
        places
    }

    /// Of a table whose rows count their changes.
    fn counted(&self, place: Place, value: serde_json::Value) -> (Place, Seen) {
        let (place, seen) = self.seen(place, value);
        let version = self.number("version");
        (place, Seen { version, ..seen })
    }

    fn seen(&self, place: Place, value: serde_json::Value) -> (Place, Seen) {
        let text = value.to_string();
        let seen = Seen {
            made: Revision(0),
            version: 0,
            changed: Revision(self.number("revision")),
            value: value_of(&place, Revision(0), &text),
            text,
        };
        (place, seen)
    }
}

/// Of a time as `to_jsonb` writes it in UTC.
fn unix_ms(text: &str) -> Option<u64> {
    let time = humantime::parse_rfc3339_weak(text.strip_suffix("+00:00")?).ok()?;
    let since = time.duration_since(UNIX_EPOCH).ok()?;
    u64::try_from(since.as_millis()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lease(holder: bool) -> serde_json::Value {
        let mut row = json!({"kind": "shard", "identity": 7, "generation": 2, "ceiling_ms": 1_800_000_000_000_u64,
            "exact": false, "revision": 9, "holder": null, "holder_name": null, "token_epoch": null,
            "token_revision": null, "boot_id": null, "expires_at": null, "version": 4});
        if holder {
            row["holder"] = json!("8b0e6a54-3c31-4a3b-9c0e-0d6f3f0c6a11");
            row["holder_name"] = json!("it's \"me\"");
            row["token_epoch"] = json!(1);
            row["token_revision"] = json!(6);
            row["boot_id"] = json!("8b0e6a54-3c31-4a3b-9c0e-0d6f3f0c6a12");
            row["expires_at"] = json!("2026-11-29T22:00:00.5+00:00");
        }
        row
    }

    #[test]
    fn a_row_of_a_lease_is_two_keys() {
        let places = row_places("lease", &lease(true));
        let [(high_water, of_high_water), (holder, of_holder)] = &places[..] else {
            panic!("{places:?}")
        };
        assert_eq!(
            (high_water.key(), holder.key()),
            ("s/7/hw".to_owned(), "s/7/holder".to_owned())
        );
        assert_eq!((of_high_water.version, of_holder.version), (4, 4));
        let Value::Holding(holding) = &of_holder.value else {
            panic!("{of_holder:?}")
        };
        assert_eq!(
            (holding.token.to_string().as_str(), holding.name.as_str()),
            ("1/6", "it's \"me\"")
        );
        assert_eq!(holding.expires_at.map(|at| at.0 % 1_000), Some(500));
        // What was kept as text is read back as the same.
        assert_eq!(value_of(holder, Revision(0), &of_holder.text), of_holder.value);
        let places = row_places("lease", &lease(false));
        assert_eq!(places[1].1.value, Value::Vacant);
        assert_eq!(value_of(holder, Revision(0), &places[1].1.text), Value::Vacant);
    }

    #[test]
    fn what_cannot_be_read_stops_nothing() {
        for key in [
            "w/1/hw",
            "w/1/holder",
            "cell",
            "stripe/a/1",
            "epoch/1",
            "named/holder/a",
            "order/w/1",
            "drain/a",
        ] {
            for text in ["", "{}", "[]", "7", "{\"generation\": \"x\"}", "\u{0}"] {
                assert_eq!(
                    value_of(&Place::of_key(key), Revision(1), text),
                    Value::Opaque,
                    "{key} {text}"
                );
            }
        }
        for table in [
            "lease",
            "named_lease",
            "cell",
            "epoch",
            "stripe",
            "named_ceiling",
            "lease_order",
            "server_drain",
            "later",
        ] {
            assert!(!row_places(table, &json!({})).is_empty());
        }
        assert_eq!(key_places(b"beacon/x/worker"), None);
        assert_eq!(key_places(b"map/server/x"), None);
    }

    #[test]
    fn the_row_and_the_key_of_a_cell_say_how_many_people_are_needed() {
        let approvals = |value: &Value| match value {
            Value::Cell { approvals, .. } => *approvals,
            other => panic!("{other:?}"),
        };
        for needed in [None, Some(2)] {
            let row = json!({"epoch": 1, "worker_format": "classic", "sealed_reason": null,
                             "approvals_needed": needed, "revision": 3});
            assert_eq!(approvals(&row_places("cell", &row)[0].1.value), needed);
        }
        let key = r#"{"epoch":1,"worker_format":"classic","sealed_reason":null,"approvals_needed":1}"#;
        assert_eq!(approvals(&value_of(&Place::Cell, Revision(1), key)), Some(1));
        let key = r#"{"epoch":1,"worker_format":"classic","sealed_reason":null}"#;
        assert_eq!(approvals(&value_of(&Place::Cell, Revision(1), key)), None);
    }

    #[test]
    fn the_token_of_an_etcd_key_is_the_revision_of_its_making() {
        let text = r#"{"holder":"8b0e6a54-3c31-4a3b-9c0e-0d6f3f0c6a11","holder_name":"a","token_epoch":2,
                       "boot_id":"8b0e6a54-3c31-4a3b-9c0e-0d6f3f0c6a12","later":1}"#;
        let Value::Holding(holding) = value_of(&Place::of_key("w/1/holder"), Revision(40), text) else {
            panic!("a holder")
        };
        assert_eq!(holding.token.to_string(), "2/40");
        assert_eq!((holding.ttl_ms, holding.expires_at), (None, None));
    }
}
