//! A standby of the store is promoted while its old primary lives.

use std::thread;
use std::time::Duration;

use idgen_core::history::Moment;

use crate::arena::Arena;
use crate::kit::process::Signal;
use crate::kit::{PATIENCE, Server, Store, eventually_true, sql};
use crate::plan::SERVERS;
use crate::{moment, trail_postgres};

impl Arena {
    /// Two stores serve one cell for a while: the old primary, which one daemon stays with, and the promoted standby,
    /// in the next epoch. What is left behind gives its shard away first: shards have no halves, so both sides would mint
    /// it. In the end that daemon comes over too, because nobody may be left behind at a second advance.
    pub fn promote_standby(&mut self, behind: usize, killed: bool, hold: Duration) -> Moment {
        let signal = if killed { Signal::KILL } else { Signal::TERM };
        let standby = self.start_standby();
        cut_off(&standby, self.store_server());
        let shards = std::mem::take(&mut self.options[behind].shards);
        self.move_on(behind);

        sql::run(&mut standby.connect(), "SELECT pg_promote()");
        self.promotions += 1;
        let next = trail_postgres::start(&standby, &self.dir, self.promotions);
        let old = self.trail.replace(next).expect("a recorder");
        let others: Vec<usize> = (0..SERVERS).filter(|n| *n != behind).collect();
        for &n in &others {
            self.end_daemon(n, signal);
            self.options[n].store = Store::on(&standby);
            self.launch(n);
        }
        self.advance_epoch(others[0]);
        for &n in &others {
            self.wait_epoch(n, self.promotions);
        }
        self.wait_minting(moment::now(), PATIENCE)
            .expect("both sides mint");
        thread::sleep(hold);

        self.end_daemon(behind, signal);
        old.finish();
        self.options[behind].store = Store::on(&standby);
        self.options[behind].shards = shards;
        self.launch(behind);
        self.promoted = Some(standby);
        moment::now()
    }

    fn start_standby(&self) -> Server {
        let mut standby = Server::backup_of(self.store_server(), true);
        standby.run();
        eventually_true(PATIENCE, "the standby follows", || {
            followers(self.store_server()) == 1
        });
        standby
    }

    /// What is granted now, the standby does not hear of.
    fn move_on(&mut self, n: usize) {
        let before = moment::now();
        self.end_daemon(n, Signal::TERM);
        self.launch(n);
        self.wait_minting(before, PATIENCE)
            .expect("everybody mints beyond the standby");
    }

    /// This server mints in this epoch.
    fn wait_epoch(&self, n: usize, epoch: u32) {
        let sql =
            format!("SELECT EXISTS (SELECT FROM idgen.slots WHERE state = 'open' AND token_epoch = {epoch})");
        let mut client = self.servers[n].connect();
        eventually_true(PATIENCE, "the new epoch is minted in", || {
            sql::value(&mut client, &sql)
        });
    }
}

fn followers(primary: &Server) -> i64 {
    let sql = "SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming'";
    sql::value(&mut primary.connect(), sql)
}

fn cut_off(standby: &Server, primary: &Server) {
    sql::run(&mut standby.connect(), "ALTER SYSTEM SET primary_conninfo = ''");
    standby.reload();
    eventually_true(PATIENCE, "the standby hears nothing", || followers(primary) == 0);
}
