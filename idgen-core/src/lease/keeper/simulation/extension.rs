//! The server's part of the world, by the rules of the extension.

use super::*;
use crate::format::plan::PlanRefused;

/// A slot of shared memory, by the rules of the extension.
#[derive(Clone, Debug)]
pub(super) struct Slot {
    pub(super) token: Token,
    pub(super) open: bool,
    pub(super) last: UnixMs,
    pub(super) ceiling: UnixMs,
    pub(super) deadline: BootMs,
}

#[derive(Clone, Debug)]
pub(super) struct Server {
    pub(super) boot_id: BootId,
    /// Every format that it was told, and from when.
    pub(super) formats: Vec<(UnixMs, CellFormat)>,
    pub(super) slots: BTreeMap<Identity, Slot>,
}

impl Server {
    /// Takes a plan that goes on where the one before it ended; false: it does not.
    pub(super) fn follow(&mut self, plan: &FormatPlan) -> bool {
        let open = self.slots.values().filter(|slot| slot.open);
        let highest = open.map(|slot| slot.ceiling).max().unwrap_or_default();
        let latest = self.formats.last().map(|(from, format)| (*from, format));
        match plan.followed_from(latest, || highest) {
            Ok(notes) => {
                self.formats.extend(notes.into_iter().flatten());
                true
            }
            Err(refused) => {
                assert_eq!(refused, PlanRefused::Other, "the server is told too late");
                false
            }
        }
    }

    fn format_at(&self, at: UnixMs) -> CellFormat {
        self.formats.iter().rfind(|(from, _)| *from <= at).unwrap().1
    }
}

impl Node {
    pub(super) fn install(&mut self, now: u64, held: &Held) -> Event {
        if held.boot_id != self.server.boot_id {
            return Event::ServerForgot;
        }
        if !self.server.follow(&self.formats()) {
            return Event::InstallRefused;
        }
        for leased in &held.leased {
            let slot = self.server.slots.get(&leased.identity);
            if slot.is_some_and(|slot| slot.token == leased.token) {
                continue;
            }
            let above = slot.is_none_or(|slot| leased.token > slot.token && leased.window.floor > slot.last);
            if !above || now >= held.deadline.0 {
                return Event::InstallRefused;
            }
            let last = leased.window.floor.saturating_sub(1);
            let (token, ceiling, deadline) = (leased.token, leased.window.ceiling, held.deadline);
            self.server.slots.insert(
                leased.identity,
                Slot {
                    token,
                    open: true,
                    last,
                    ceiling,
                    deadline,
                },
            );
        }
        let token = held.leased[0].token;
        let newest = self.installed.insert(held.boot_id, token);
        assert!(
            newest.is_none_or(|newest| newest <= token),
            "installed tokens rise"
        );
        self.installs += 1;
        Event::Installed
    }

    pub(super) fn extend(&mut self, held: &Held) -> Event {
        if held.boot_id != self.server.boot_id {
            return Event::ServerForgot;
        }
        if !self.server.follow(&self.formats()) {
            return Event::ExtendRefused;
        }
        for leased in &held.leased {
            match self.server.slots.get_mut(&leased.identity) {
                Some(slot) if slot.open && slot.token == leased.token => {
                    slot.ceiling = slot.ceiling.max(leased.window.ceiling);
                    slot.deadline = slot.deadline.max(held.deadline);
                }
                _ => return Event::ExtendRefused,
            }
        }
        Event::Extended
    }

    pub(super) fn fence(&mut self, boot_id: BootId, claims: &[Claim]) -> Event {
        if boot_id != self.server.boot_id {
            return Event::ServerForgot;
        }
        let mut marks = Vec::new();
        for claim in claims {
            if let Some(slot) = self.server.slots.get_mut(&claim.identity)
                && slot.token == claim.token
            {
                slot.open = false;
                marks.push(Mark {
                    claim: *claim,
                    last: slot.last,
                });
            }
        }
        self.fenced.extend(marks.iter().map(|mark| (boot_id, *mark)));
        Event::Fenced { marks }
    }

    pub(super) fn mint(&mut self, ground: &mut Ground) {
        let clock = self.clock(ground.now);
        for server in self.orphans.iter_mut().chain([&mut self.server]) {
            let mut minted = Vec::new();
            for (identity, slot) in &mut server.slots {
                let at = clock.wall.max(slot.last.saturating_add(1));
                if slot.open && clock.boot < slot.deadline && at <= slot.ceiling {
                    slot.last = at;
                    minted.push((*identity, slot.token, at));
                }
            }
            for (identity, token, at) in minted {
                let who = (token, server.boot_id);
                assert_eq!(
                    *ground.minted.entry((identity, at)).or_insert(who),
                    who,
                    "minted twice"
                );
                assert!(at <= ground.committed[&(identity, token)]);
                assert_eq!(
                    server.format_at(at),
                    ground.format_at(at),
                    "minted in another format"
                );
            }
        }
    }
}
