//! The outbox: from the table to a real Kafka.

#[cfg(test)]
#[path = "../e2e/kit/mod.rs"]
#[allow(
    dead_code,
    unused_imports,
    reason = "the kit is shared; these tests need a part of it"
)]
mod kit;

#[cfg(test)]
mod archive_days;
#[cfg(test)]
mod archive_scene;
#[cfg(test)]
mod archive_table;
#[cfg(test)]
mod archive_topic;
#[cfg(test)]
mod broker;
#[cfg(test)]
mod ctl;
#[cfg(test)]
mod days;
#[cfg(test)]
mod drainer;
#[cfg(test)]
mod flow;
#[cfg(test)]
mod marks;
#[cfg(test)]
mod mock;
#[cfg(test)]
mod places;
#[cfg(test)]
mod scene;
#[cfg(test)]
mod soak;
#[cfg(test)]
mod trouble;
#[cfg(test)]
mod whois;
