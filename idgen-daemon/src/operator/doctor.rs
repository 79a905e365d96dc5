//! What `idgenctl doctor` asks: most incidents with topics, buckets and leaves were settings.

use crate::archive::objects::{AnyObjects, BucketFacts, Keep, ObjectErrorKind, Objects, S3};
use crate::archive::{has_extension, open_database};
use crate::authority::Open;
use crate::config::{Config, KafkaConfig};
use crate::error::{Exit, Result};
use crate::lease::host_clock;
use crate::plain_table::plain_table;
use crate::postgres::Session;
use bytes::Bytes;
use rdkafka::admin::{AdminClient, AdminOptions, ResourceSpecifier};
use rdkafka::client::DefaultClientContext;
use serde::Serialize;
use std::collections::BTreeMap;
use std::time::{Duration, UNIX_EPOCH};
use uuid::Uuid;

const ASK: Duration = Duration::from_secs(10);
/// S3 refuses requests from a clock that is off by a quarter of an hour; long before that days end at the wrong moment.
const CLOCK_OFF_S: u64 = 30;
const WEEK_MS: i64 = 7 * 86_400_000;
/// Days that are made ahead, at the least.
const DAYS_AHEAD: i64 = 3;

/// How a thing stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Health {
    /// As it must be.
    Ok,
    /// Not as it should be.
    Finding,
    /// It could not be asked.
    Error,
}

/// One thing that was asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Check {
    /// Of what.
    pub of: String,
    /// How it stands.
    pub health: Health,
    /// What was seen.
    pub seen: String,
    /// What to do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hint: Option<&'static str>,
}

/// All of them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Diagnosis {
    /// In the order they were asked.
    pub checks: Vec<Check>,
}

impl Diagnosis {
    fn ok(&mut self, of: impl Into<String>, seen: impl Into<String>) {
        self.add(of, Health::Ok, seen, None);
    }

    fn add(
        &mut self,
        of: impl Into<String>,
        health: Health,
        seen: impl Into<String>,
        hint: Option<&'static str>,
    ) {
        self.checks.push(Check {
            of: of.into(),
            health,
            seen: seen.into(),
            hint,
        });
    }

    fn unless(&mut self, is_well: bool, of: &str, seen: impl Into<String>, hint: &'static str) {
        if is_well {
            self.ok(of, seen);
        } else {
            self.add(of, Health::Finding, seen, Some(hint));
        }
    }

    /// How the command ends.
    #[must_use]
    pub fn exit(&self) -> Exit {
        let has = |health| self.checks.iter().any(|check| check.health == health);
        match (has(Health::Finding), has(Health::Error)) {
            (true, _) => Exit::Finding,
            (false, true) => Exit::Error,
            (false, false) => Exit::Ok,
        }
    }

    /// For people.
    #[must_use]
    pub fn text(&self) -> String {
        let mut table = plain_table();
        table.set_header(["", "what", "seen", "what to do"]);
        for check in &self.checks {
            let mark = match check.health {
                Health::Ok => "ok",
                Health::Finding => "FINDING",
                Health::Error => "ERROR",
            };
            table.add_row([mark, &check.of, &check.seen, check.hint.unwrap_or_default()]);
        }
        table.to_string()
    }
}

/// Asks everything that the configuration names.
pub async fn examine(config: &Config) -> Diagnosis {
    let mut found = Diagnosis::default();
    if let Err(error) = tables(config, &mut found).await {
        found.add(
            "postgres",
            Health::Error,
            error.to_string(),
            Some("postgres.url must lead to the server"),
        );
    }
    match &config.kafka {
        None => found.ok("kafka", "none is configured"),
        Some(kafka) => topic(kafka, &mut found).await,
    }
    match &config.archive {
        None => found.add(
            "archive",
            Health::Finding,
            "none is configured",
            Some("without an archive no day of events ever leaves the tables: set [archive]"),
        ),
        Some(archive) => {
            let objects = AnyObjects::open(&archive.place).await;
            let of = archive.place.to_string();
            place(&objects, &of, &mut found).await;
            if let AnyObjects::S3(s3) = &objects {
                bucket(s3, archive.object_lock_days.is_some(), &of, &mut found).await;
            }
        }
    }
    found
}

async fn tables(config: &Config, found: &mut Diagnosis) -> Result<()> {
    let postgres = &config.postgres;
    for database in postgres.databases().await? {
        let session = open_database(&postgres.url.in_database(&database), postgres.connect_timeout).await?;
        if !has_extension(&session).await? {
            continue;
        }
        clock(&session, &format!("clock of database {database}"), found).await;
        leaves(&session, &database, found).await;
    }
    Ok(())
}

async fn clock(session: &Session, of: &str, found: &mut Diagnosis) {
    let asked = session
        .row("SELECT (extract(epoch FROM clock_timestamp()) * 1000)::int8", &[])
        .await;
    let theirs = asked.ok().and_then(|row| row.try_get::<_, i64>(0).ok());
    let Some(theirs) = theirs.and_then(|ms| u64::try_from(ms).ok()) else {
        found.add(of, Health::Error, "the server does not say", None);
        return;
    };
    let off = theirs.abs_diff(host_clock().0) / 1_000;
    found.unless(
        off <= CLOCK_OFF_S,
        of,
        format!("{off} s from the clock here"),
        "one of both machines has a wrong clock: days end by it, and S3 refuses requests from it",
    );
}

/// Bounds of the leaves, as the catalogue has them, with the session's time zone pinned to UTC.
const LEAVES: &str = "
    SELECT c.relname::text,
           substring(pg_get_expr(c.relpartbound, c.oid) FROM $$FROM \\('([^']*)'\\)$$),
           substring(pg_get_expr(c.relpartbound, c.oid) FROM $$TO \\('([^']*)'\\)$$)
      FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
     WHERE i.inhparent = 'idgen.audit_event'::regclass ORDER BY 2";
const TODAY: &str = "SELECT to_char(clock_timestamp(), 'YYYY-MM-DD HH24:MI:SS\"+00\"')";
const AHEAD: &str = "
    SELECT floor(extract(epoch FROM $1::text::timestamptz - clock_timestamp()) / 86400)::int8";

async fn leaves(session: &Session, database: &str, found: &mut Diagnosis) {
    let of = format!("day tables of {database}");
    let hint = "the refill workers of the extension make the leaves; one that was made or dropped by hand must have bounds at \
                midnight UTC";
    let rows = match session.rows(LEAVES, &[]).await {
        Ok(rows) => rows,
        Err(error) => return found.add(of, Health::Error, error.to_string(), None),
    };
    let bounds: Vec<(String, String, String)> = rows
        .iter()
        .filter_map(|row| Some((row.try_get(0).ok()?, row.try_get(1).ok()?, row.try_get(2).ok()?)))
        .collect();
    if bounds.len() != rows.len() {
        return found.add(of, Health::Finding, "a leaf has no plain bounds", Some(hint));
    }
    if bounds.is_empty() {
        return found.ok(of, "none yet: they are made before the first event");
    }
    if let Some((name, from, _)) = bounds.iter().find(|(_, from, _)| !from.ends_with(" 00:00:00+00")) {
        let seen = format!("{name} begins at {from}, which is no midnight in UTC");
        return found.add(of, Health::Finding, seen, Some(hint));
    }
    let mut pairs = bounds.iter().zip(bounds.iter().skip(1));
    // What has left the tables is behind the first.
    if let Some(((_, _, to), (name, from, _))) = pairs.find(|((_, _, to), (_, from, _))| to != from) {
        let seen = format!("a hole from {to} to {from}, before {name}");
        return found.add(of, Health::Finding, seen, Some(hint));
    }
    let end = bounds.last().map(|(_, _, to)| to.clone()).unwrap_or_default();
    let ahead = session.row(AHEAD, &[&end]).await.ok();
    let ahead = ahead.and_then(|row| row.try_get::<_, i64>(0).ok());
    let today = session.row(TODAY, &[]).await.ok();
    let today = today
        .and_then(|row| row.try_get::<_, String>(0).ok())
        .unwrap_or_default();
    match ahead {
        Some(days) => found.unless(
            days >= DAYS_AHEAD,
            &of,
            format!("{} leaves without a hole, {days} whole days ahead of {today}", bounds.len()),
            "no day is made ahead: is idgen in shared_preload_libraries, and does a refill worker run? Without a leaf for the \
             day no range is granted",
        ),
        None => found.add(of, Health::Error, "the server does not say which day it is", None),
    }
}

async fn topic(kafka: &KafkaConfig, found: &mut Diagnosis) {
    let of = format!("topic {}", kafka.topic);
    let settings = match settings(kafka).await {
        Ok(settings) => settings,
        Err(why) => {
            return found.add(
                of,
                Health::Error,
                why,
                Some("make the topic, or let idgend describe it: docs/operations.md"),
            );
        }
    };
    let of_setting = |name: &str| settings.get(name).cloned().unwrap_or_default();
    let number = |name: &str| of_setting(name).parse::<i64>().unwrap_or(0);
    let mut setting = |name: &str, is_well: bool, hint| {
        found.unless(is_well, &of, format!("{name} = {}", of_setting(name)), hint);
    };
    setting(
        "message.timestamp.type",
        of_setting("message.timestamp.type") == "LogAppendTime",
        "set LogAppendTime: the archive is cut by the broker's time, not the senders'",
    );
    setting(
        "cleanup.policy",
        of_setting("cleanup.policy") == "delete",
        "set delete: a compacted topic loses events",
    );
    let kept = number("retention.ms");
    setting(
        "retention.ms",
        !(0..WEEK_MS).contains(&kept),
        "keep a week at the least: so long the archiver may be away",
    );
    let copies = number("min.insync.replicas");
    setting(
        "min.insync.replicas",
        copies >= 2,
        "set 2 and three replicas: one broker alone can lose what it has acknowledged",
    );
    setting(
        "unclean.leader.election.enable",
        of_setting("unclean.leader.election.enable") == "false",
        "set false: a broker that is behind must not become leader",
    );
}

async fn settings(kafka: &KafkaConfig) -> std::result::Result<BTreeMap<String, String>, String> {
    let client = kafka.client().map_err(|error| error.to_string())?;
    let admin: AdminClient<DefaultClientContext> = client.create().map_err(|error| error.to_string())?;
    let options = AdminOptions::new().request_timeout(Some(ASK));
    let asked = admin
        .describe_configs([&ResourceSpecifier::Topic(&kafka.topic)], &options)
        .await;
    let answers = asked.map_err(|error| error.to_string())?;
    let answer = answers.into_iter().next().ok_or("the broker does not say")?;
    let resource = answer.map_err(|code| code.to_string())?;
    let entries = resource.entries.into_iter();
    Ok(entries
        .filter_map(|entry| Some((entry.name, entry.value?)))
        .collect())
}

/// Writes, reads and removes an object of its own: rights, the key of KMS, and whether a conditional create is one.
async fn place<O: Objects>(objects: &O, of: &str, found: &mut Diagnosis) {
    let key = format!("audit/v1/_doctor/{}", Uuid::new_v4());
    let body = Bytes::from_static(b"written by idgenctl doctor, to be removed by it\n");
    if let Err(error) = objects.put_if_absent(&key, &body, Keep::default()).await {
        let health = match error.kind {
            ObjectErrorKind::Lost => Health::Error,
            _ => Health::Finding,
        };
        return found.add(
            of,
            health,
            error.to_string(),
            Some("the archiver can write nothing"),
        );
    }
    match objects.put_if_absent(&key, &body, Keep::default()).await {
        Ok(()) => found.add(
            of,
            Health::Finding,
            "a conditional create replaces what is there",
            Some("this service does not know If-None-Match: two archivers would overwrite each other; take another one"),
        ),
        Err(error) if error.kind == ObjectErrorKind::Exists => {
            found.ok(of, "a conditional create is refused the second time");
        }
        // Whoever is busy says nothing of what it knows.
        Err(error) => found.add(
            of,
            Health::Error,
            format!("a second conditional create was not answered: {error}"),
            Some("ask again"),
        ),
    }
    let read = objects.get(&key).await;
    match &read {
        Ok(back) if *back == body => found.ok(of, "what is written is read back"),
        Ok(_) => found.add(
            of,
            Health::Finding,
            "what is read is not what was written",
            Some("take another service"),
        ),
        Err(error) => found.add(
            of,
            Health::Finding,
            error.to_string(),
            Some("the check can read nothing"),
        ),
    }
    if let Ok(Some(meta)) = objects.head(&key).await
        && let Some(at) = meta.modified
    {
        let theirs = at.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let off = theirs.abs_diff(host_clock().0 / 1_000);
        found.unless(
            off <= CLOCK_OFF_S,
            &format!("clock of {of}"),
            format!("{off} s from the clock here"),
            "set this machine's clock: requests are signed with the time",
        );
    }
    if let Err(error) = objects.delete(&key).await {
        let seen = format!("{key} is left behind: {error}");
        found.add(
            of,
            Health::Finding,
            seen,
            Some("let idgend remove objects below the prefix, or remove this one by hand"),
        );
    }
}

async fn bucket(s3: &S3, wants_lock: bool, of: &str, found: &mut Diagnosis) {
    let facts = match s3.facts().await {
        Ok(facts) => facts,
        Err(error) => return found.add(of, Health::Error, error.to_string(), None),
    };
    let BucketFacts {
        encryption,
        expiring,
        aborts_uploads,
        open_uploads,
        object_lock,
    } = facts;
    found.ok(
        of,
        format!(
            "encryption of the bucket itself: {}",
            encryption.as_deref().unwrap_or("not said")
        ),
    );
    found.unless(
        expiring.is_empty(),
        of,
        if expiring.is_empty() {
            "no rule removes objects".to_owned()
        } else {
            format!("rules remove objects: {}", expiring.join(", "))
        },
        "the rule must not cover the prefix of the archive: a chain with a hole proves nothing",
    );
    if let Some(uploads) = open_uploads.filter(|uploads| *uploads > 0) {
        let seen = format!("{uploads} uploads in parts were begun and not ended; idgend makes none");
        let hint = "add a lifecycle rule with AbortIncompleteMultipartUpload";
        found.unless(aborts_uploads == Some(true), of, seen, hint);
    }
    if wants_lock {
        found.unless(
            object_lock != Some(false),
            of,
            match object_lock {
                Some(true) => "objects can be locked",
                Some(false) => "objects cannot be locked",
                None => "it does not say whether objects can be locked",
            },
            "archive.object_lock_days needs a bucket that was made with object lock",
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::archive::objects::scripted::{Happens, Scripted};

    async fn asked(script: &[Option<ObjectErrorKind>]) -> (Exit, String) {
        let place_of_test = Scripted::default();
        for happens in script {
            let happens = happens.map_or(Happens::Done, Happens::Refused);
            place_of_test.next("put", "_doctor", happens);
        }
        let mut found = Diagnosis::default();
        place(&place_of_test, "here", &mut found).await;
        (found.exit(), found.text())
    }

    /// A timeout was told as "replaces what is there; take another service".
    #[tokio::test]
    async fn only_a_second_create_that_is_done_shows_that_a_place_replaces() {
        use ObjectErrorKind::{Denied, Lost};
        for (script, exit, says) in [
            (&[][..], Exit::Ok, "is refused the second time"),
            (&[Some(Lost)], Exit::Error, "can write nothing"),
            (&[Some(Denied)], Exit::Finding, "can write nothing"),
            (&[None, Some(Lost)], Exit::Error, "was not answered"),
        ] {
            let (ended, text) = asked(script).await;
            assert_eq!(ended, exit, "{text}");
            assert!(text.contains(says) && !text.contains("replaces"), "{text}");
        }
    }
}
