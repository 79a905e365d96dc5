//! The places where sessions leave requests for many ids at once, and refill workers the answers.
//!
//! `idgen_core::segment::Exchange` says who may touch request and answer when; what is here is the memory. A place
//! is of one session at a time, which may end at any moment: [`Asked`] gives the place back when it is dropped, and
//! [`leave_at_abort`] when a session ends without unwinding.

use super::{SegmentKey, Waiters, shared};
use crate::segment::failure::{Failure, Holder};
use idgen_core::clock::BootMs;
use idgen_core::segment::{Exchange, Places, Ticket};
use std::cell::{Cell, UnsafeCell};
use std::sync::atomic::{AtomicU32, Ordering};

/// Requests at a time, of the whole server; more sessions wait for a place. One request takes a worker about as
/// long as one refill.
const PLACES: usize = 64;

/// As `requests::KEY_BYTES_MAX`.
const KEY_BYTES_MAX: usize = crate::segment::requests::KEY_BYTES_MAX;

/// What is asked for.
#[derive(Clone, Copy)]
pub struct BulkRequest {
    pub key: SegmentKey,
    pub n: u64,
    pub role: u32,
    pub pid: i32,
    /// `None`: the request has no key. As many bytes of `request_key` are meant.
    request_key_bytes: Option<usize>,
    request_key: [u8; KEY_BYTES_MAX],
}

impl BulkRequest {
    /// `request_key`: at most 200 bytes.
    pub fn new(key: SegmentKey, n: u64, role: u32, pid: i32, request_key: Option<&str>) -> Self {
        let mut room = [0; KEY_BYTES_MAX];
        let given = request_key.map(|text| &text.as_bytes()[..text.len().min(KEY_BYTES_MAX)]);
        if let Some(given) = given {
            room[..given.len()].copy_from_slice(given);
        }
        Self {
            key,
            n,
            role,
            pid,
            request_key_bytes: given.map(<[u8]>::len),
            request_key: room,
        }
    }

    pub fn request_key(&self) -> Option<&str> {
        let bytes = self.request_key.get(..self.request_key_bytes?)?;
        std::str::from_utf8(bytes).ok()
    }
}

/// What came of it.
#[derive(Clone, Copy)]
pub enum BulkAnswer {
    Granted(Places),
    Gone,
    Exhausted {
        limit_id: i64,
    },
    KeyTaken {
        n: u64,
    },
    /// The fetch limit of the tag, and when it allows the next range.
    RateLimited {
        limit: u32,
        until: BootMs,
    },
    /// The row of the tag, or a table.
    Locked {
        failure: Failure,
        holder: Holder,
    },
    /// The worker met an error; the server log has it.
    Error,
    NoWorker,
    /// Authority is leased, and no lease is open here.
    NoAuthority,
    /// Authority is leased, and the tag's ceiling is too low.
    NoCeiling,
    /// The database may be a copy.
    Copy,
    /// The database has another history, and waits for what others know of the old one.
    Unwitnessed,
    /// The tag and its space are not cut in the same stripes.
    NotCut,
    BurnTooLarge {
        limit_id: i64,
    },
}

/// One place.
#[repr(C, align(128))]
pub struct BulkPlace {
    exchange: Exchange,
    database: AtomicU32,
    /// Entry of the worker that has begun.
    worker: AtomicU32,
    request: UnsafeCell<Option<BulkRequest>>,
    answer: UnsafeCell<BulkAnswer>,
    answered: Waiters,
}

/// Places, and the sessions that wait for one.
pub struct Bulk {
    places: [BulkPlace; PLACES],
    freed: Waiters,
}

/// A request that this session has made and not yet left.
pub struct Asked {
    place: &'static BulkPlace,
    ticket: Ticket,
}

thread_local! {
    /// The same, for the end of a session that drops nothing.
    static HELD: Cell<Option<(&'static BulkPlace, Ticket)>> = const { Cell::new(None) };
}

impl Bulk {
    /// Every place free.
    ///
    /// # Safety
    /// `memory` must be writable, aligned, and unseen by anybody else.
    pub(super) unsafe fn write(memory: *mut Self) {
        // SAFETY: by the caller's promise; the condition variables are in memory that is written.
        unsafe {
            memory.write(Self {
                places: std::array::from_fn(|_| BulkPlace::free()),
                freed: Waiters::default(),
            });
            Waiters::initialise(&raw mut (*memory).freed);
            let places = (&raw mut (*memory).places).cast::<BulkPlace>();
            for index in 0..PLACES {
                Waiters::initialise(&raw mut (*places.add(index)).answered);
            }
        }
    }

    /// Leave a request for the workers of its database. `None`: every place is taken.
    pub fn ask(&'static self, request: BulkRequest) -> Option<Asked> {
        let (place, ticket) = self
            .places
            .iter()
            .find_map(|place| Some((place, place.exchange.claim()?)))?;
        HELD.set(Some((place, ticket)));
        place.database.store(request.key.database, Ordering::Relaxed);
        // SAFETY: the place is being filled, by this session.
        unsafe { *place.request.get() = Some(request) };
        place.exchange.ask(ticket);
        Some(Asked { place, ticket })
    }

    /// Woken whenever a place has become free.
    pub fn freed(&self) -> &Waiters {
        &self.freed
    }

    /// The databases that have a request which nobody serves yet.
    pub fn databases(&self) -> impl Iterator<Item = u32> {
        let asked = self.places.iter().filter(|place| place.exchange.is_asked());
        asked.map(|place| place.database.load(Ordering::Relaxed))
    }

    /// The places with requests of a database that nobody serves yet.
    pub fn asked_in(&self, database: u32) -> impl Iterator<Item = &BulkPlace> {
        self.places.iter().filter(move |place| {
            place.exchange.is_asked() && place.database.load(Ordering::Relaxed) == database
        })
    }

    /// A worker has died: answer what it had begun.
    pub fn answer_for_dead(&self, worker: usize) {
        for place in &self.places {
            if let Some(ticket) = place.exchange.begun()
                && place.worker.load(Ordering::Acquire) as usize == worker
            {
                self.answer(place, ticket, BulkAnswer::Error);
            }
        }
    }

    /// The answer to what [`BulkPlace::begin`] gave. `false`: whoever had asked is gone.
    pub fn answer(&self, place: &BulkPlace, ticket: Ticket, answer: BulkAnswer) -> bool {
        // SAFETY: being served, by the caller or by a worker that is dead and the caller stands in for.
        unsafe { *place.answer.get() = answer };
        let read = place.exchange.answer(ticket);
        if read {
            place.answered.wake();
        } else {
            self.freed.wake();
        }
        read
    }
}

impl BulkPlace {
    fn free() -> Self {
        Self {
            exchange: Exchange::new(),
            database: AtomicU32::new(0),
            worker: AtomicU32::new(0),
            request: UnsafeCell::new(None),
            answer: UnsafeCell::new(BulkAnswer::Error),
            answered: Waiters::default(),
        }
    }

    /// Worker: take a request on. `None`: another has, or it was withdrawn.
    pub fn begin(&self, worker: usize) -> Option<(Ticket, BulkRequest)> {
        let ticket = self.exchange.begin()?;
        self.worker.store(worker as u32, Ordering::Release);
        // SAFETY: being served, by this worker.
        let request = unsafe { *self.request.get() };
        // Whoever has asked has written it.
        request.map(|request| (ticket, request))
    }
}

impl Asked {
    /// `None`: not yet.
    pub fn answer(&self) -> Option<BulkAnswer> {
        self.place.exchange.is_answered(self.ticket).then(|| {
            // SAFETY: answered, and the place is this session's until the drop.
            unsafe { *self.place.answer.get() }
        })
    }

    /// Woken when the answer is there.
    pub fn answered(&self) -> &Waiters {
        &self.place.answered
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        leave(self.place, self.ticket);
        HELD.set(None);
    }
}

/// A transaction that ends without unwinding, because its session does, gives back what it holds.
pub fn leave_at_abort() {
    if let Some((place, ticket)) = HELD.take() {
        leave(place, ticket);
    }
}

fn leave(place: &BulkPlace, ticket: Ticket) {
    place.exchange.leave(ticket);
    if let Some(shared) = shared() {
        shared.bulk.freed.wake();
    }
}
