//! What this session has drawn: one record per order of ids, written with every one of them. A batch sees by it that
//! somebody drew in between; the counters of `idgen.stats` get it in handfuls.

use crate::local::Local;
use crate::mint::Source;
use crate::shmem::{Identity, shared};
use crate::transaction;
use crate::{clock, guc};
use pgrx::pg_sys;
use std::sync::atomic::Ordering::Relaxed;

/// A statement that draws more is seen before it ends.
const HANDFUL: u64 = 8_192;

/// For whom ids are counted.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Account {
    /// `None`: a segment, whose own buffer counts.
    identity: Option<Identity>,
    role: pg_sys::Oid,
}

impl Account {
    /// Of nobody: what is drawn while `idgen.track_ids` is off.
    const UNTRACKED: Self = Self {
        identity: None,
        role: pg_sys::InvalidOid,
    };

    /// All of it in one word, which is compared with every id: the identity in the lower half, the role above.
    #[inline(always)]
    const fn packed(self) -> u64 {
        let identity = match self.identity {
            None => 0,
            // The top bit: worker 0 is not nobody.
            Some(Identity { kind, number }) => 1 << 31 | (kind as u64) << 16 | number as u64,
        };
        identity | (self.role.to_u32() as u64) << 32
    }
}

/// Ids that rise together.
#[derive(Clone, Copy)]
struct Drawn {
    /// Ever, by this session.
    ids: u64,
    /// Of these, counted in shared memory or not to be counted.
    handed_in: u64,
    account: Account,
    /// [`Account::packed`].
    packed: u64,
}

const NOTHING: Drawn = Drawn {
    ids: 0,
    handed_in: 0,
    account: Account::UNTRACKED,
    packed: Account::UNTRACKED.packed(),
};

/// Workers have one order, shards one each: sixteen records for all of them. A stranger's claim costs a batch what is
/// left of its run, never an id its order.
static SNOWFLAKES: [Local<Drawn>; 1 + SHARD_ORDERS] = [const { Local::new(NOTHING) }; 1 + SHARD_ORDERS];
const SHARD_ORDERS: usize = 16;

static SEGMENT_IDS: Local<Drawn> = Local::new(NOTHING);

#[inline(always)]
fn of_source(source: Source) -> &'static Local<Drawn> {
    match source {
        Source::Workers | Source::BulkWorkers => &SNOWFLAKES[0],
        Source::Shard(shard) => &SNOWFLAKES[1 + usize::from(shard) % SHARD_ORDERS],
    }
}

/// How many ids this session has drawn that rise together with those of `source`.
pub fn so_far(source: Source) -> u64 {
    of_source(source).get().ids
}

/// `n` snowflakes of `identity`, which is one of `source`, are for `role`.
#[inline(always)]
pub fn snowflakes(source: Source, identity: Identity, role: pg_sys::Oid, n: u64) {
    let identity = Some(identity);
    add(of_source(source), Account { identity, role }, n);
}

/// `n` ids of a segment are for `role`.
#[inline(always)]
pub fn segment_ids(role: pg_sys::Oid, n: u64) {
    let identity = None;
    add(&SEGMENT_IDS, Account { identity, role }, n);
}

#[inline(always)]
fn add(to: &Local<Drawn>, account: Account, n: u64) {
    let account = if guc::track_ids() {
        account
    } else {
        Account::UNTRACKED
    };
    let packed = account.packed();
    let count = |drawn: &mut Drawn| {
        drawn.ids += n;
        drawn.packed == packed && drawn.ids - drawn.handed_in < HANDFUL
    };
    // In place: copying it in and out costs three times as much as the addition.
    // SAFETY: the closure compares and adds, no more.
    if !unsafe { to.with(count) } {
        open_account(to, account, n);
    }
}

/// The last `n` ids are for `account`, the ones before for another or enough of a handful.
#[cold]
#[inline(never)]
fn open_account(of: &Local<Drawn>, account: Account, n: u64) {
    let before = of.get();
    let handed_in = before.ids - n;
    of.set(Drawn {
        ids: before.ids,
        handed_in,
        account,
        packed: account.packed(),
    });
    hand_in(before.account, handed_in - before.handed_in);
}

fn hand_in(account: Account, ids: u64) {
    let (Some(shared), true) = (shared(), ids > 0 && account != Account::UNTRACKED) else {
        return;
    };
    if let Some(identity) = account.identity {
        shared.leases().token(identity).ids.fetch_add(ids, Relaxed);
    }
    let role = account.role.to_u32();
    shared.stats.count_role(role, ids, clock::boot());
}

/// At the end of every transaction what is pending is handed in; once per process.
pub fn define_callback() {
    transaction::tell(on_transaction_end);
}

#[pgrx::pg_guard]
unsafe extern "C-unwind" fn on_transaction_end(
    event: pg_sys::XactEvent::Type,
    _argument: *mut std::ffi::c_void,
) {
    use pg_sys::XactEvent::{XACT_EVENT_ABORT, XACT_EVENT_COMMIT, XACT_EVENT_PREPARE};
    if !matches!(event, XACT_EVENT_COMMIT | XACT_EVENT_ABORT | XACT_EVENT_PREPARE) {
        return;
    }
    for order in SNOWFLAKES.iter().chain([&SEGMENT_IDS]) {
        let drawn = order.get();
        if drawn.ids > drawn.handed_in {
            let handed_in = drawn.ids;
            order.set(Drawn { handed_in, ..drawn });
            hand_in(drawn.account, drawn.ids - drawn.handed_in);
        }
    }
}
