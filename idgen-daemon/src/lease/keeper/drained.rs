//! What the keeper does where somebody has drained its server: it says so, here and in the server. That nothing is leased is
//! the matter of the desk, and that what is leased ends one of orders.

use super::*;
use idgen_core::lease::Drain;
use std::time::UNIX_EPOCH;

impl<S: LeaseStore, C: Connect> Keeper<S, C> {
    /// After an answer of the store.
    pub(super) fn watch_drain(&mut self) {
        let was = self.drain_trouble.text().is_some();
        match self.desk.drained() {
            Some(drain) => self.drain_trouble.raise(told(drain), Instant::now()),
            None => self
                .drain_trouble
                .settle("this server was resumed: it takes leases again"),
        }
        if was != self.drain_trouble.text().is_some() {
            self.look_at = Instant::now();
        }
    }

    /// Callers are to hear why there is no lease. Before the store was looked at nothing is known of it.
    pub(super) async fn tell_drain(&mut self, server: &C::Server, boot_id: BootId) -> Result<()> {
        let drained = self.drain_trouble.text().map(str::to_owned);
        let telling = Some((boot_id, drained));
        if self.desk.cell().is_none() || self.drain_told == telling {
            return Ok(());
        }
        let drained = telling.as_ref().and_then(|(_, drained)| drained.as_deref());
        server.note_drained(drained).await?;
        self.drain_told = telling;
        Ok(())
    }
}

/// For people, of whoever asks for ids too.
fn told(drain: &Drain) -> String {
    let at = humantime::format_rfc3339_seconds(UNIX_EPOCH + Duration::from_millis(drain.at.0));
    let Drain { server, by, .. } = drain;
    let reason = match drain.reason.as_str() {
        "" => String::new(),
        reason => format!(": {reason}"),
    };
    let text = format!("server {server} was drained at {at} by {by}{reason}");
    text.chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_asks_hears_who_has_drained_the_server_when_and_why() {
        let mut drain = Drain {
            server: "db-a".to_owned(),
            drained: true,
            at: UnixMs(1_795_992_006_500),
            by: "alice at db-b".to_owned(),
            reason: "a new\nkernel".to_owned(),
            version: 1,
        };
        let text = "server db-a was drained at 2026-11-29T22:40:06Z by alice at db-b";
        assert_eq!(told(&drain), format!("{text}: a new kernel"));
        drain.reason.clear();
        assert_eq!(told(&drain), text);
    }
}
