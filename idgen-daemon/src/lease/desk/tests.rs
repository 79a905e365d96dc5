use super::*;
use crate::lease::host_clock;
use crate::lease::store::CellStore;
use crate::lease::store_memory::{Clock, Fault, MemoryPlace, MemoryStore};
use crate::log::logged;
use idgen_core::lease::{Class, InstanceId, TimingSpec};

const TTL_MS: u64 = 30_000;

const REACH: Reach = Reach {
    timeout_ms: 1_000,
    members: 1,
};

fn timing() -> Timing {
    Timing::new(TimingSpec::of_ttl(TTL_MS)).unwrap()
}

fn desk(place: &MemoryPlace) -> Desk<MemoryStore> {
    let holder = HolderName {
        instance: InstanceId(1),
        name: "desk".to_owned(),
    };
    let store = place.open(Class::Worker, holder.clone(), TTL_MS);
    Desk::new(store, holder, timing(), REACH)
}

async fn probe(desk: &mut Desk<MemoryStore>) -> Answer {
    probe_with(desk, Remembered::default()).await
}

async fn probe_with(desk: &mut Desk<MemoryStore>, remembered: Remembered) -> Answer {
    desk.submit(Request::Probe {
        ticket: Ticket(1),
        remembered,
        wall: host_clock(),
    });
    desk.answer().await
}

#[tokio::test]
async fn an_empty_store_is_waited_for_and_another_cell_ends_the_daemon() {
    let place = MemoryPlace::new(Clock::Real);
    place.make_cell();
    let mut desk = desk(&place);
    let first = probe(&mut desk).await;
    assert!(matches!(first.event, Some(Event::Probed { .. })), "{first:?}");

    place.wipe();
    let empty = probe(&mut desk).await;
    let trouble = empty.trouble.expect("nothing is made in its place");
    assert_eq!(trouble.kind, StoreErrorKind::Denied, "{trouble}");
    assert!(empty.refused.is_none(), "it may be put back");

    place.make_cell();
    let other = probe(&mut desk).await;
    let refused = other.refused.expect("it is another store");
    assert!(
        refused.to_string().contains("the lease store is cell"),
        "{refused}"
    );
}

/// As after a start of the daemon beside a server that minted, whose store was wiped.
#[tokio::test]
async fn a_cell_is_made_only_for_a_server_that_has_said_that_it_had_none() {
    let place = MemoryPlace::new(Clock::Real);
    let mut desk = desk(&place);
    let denied = |answer: Answer| {
        answer
            .trouble
            .is_some_and(|trouble| trouble.kind == StoreErrorKind::Denied)
    };
    assert!(denied(probe(&mut desk).await), "it was not asked yet");
    assert!(denied(acquire(&mut desk, Some(CellId(7))).await));
    assert!(!place.has_cell());
    let made = acquire(&mut desk, None).await;
    assert!(matches!(made.event, Some(Event::Granted { .. })), "{made:?}");
    assert!(place.has_cell());
}

async fn acquire(desk: &mut Desk<MemoryStore>, server_cell: Option<CellId>) -> Answer {
    desk.submit(Request::Acquire(Acquire {
        ticket: Ticket(2),
        boot_id: BootId(3),
        remembered: Remembered {
            cell: server_cell,
            ..Remembered::default()
        },
        reading: ClockReading {
            wall: host_clock(),
            boot: BootMs(5),
        },
        doubt: None,
        memory: Memory::new(),
        wanted: Wanted::Any(1),
        random: 7,
    }));
    desk.answer().await
}

/// The member that answered was paused; when it is asked again, before anything is sealed, it has caught up.
#[tokio::test]
async fn an_old_answer_seals_nothing() {
    let place = MemoryPlace::new(Clock::Real);
    place.make_cell();
    let mut desk = desk(&place);
    probe(&mut desk).await;
    let old = place.backup();
    place.advance_epoch();
    let new = place.backup();
    probe(&mut desk).await;

    place.restore(&old, 1);
    let caught_up = async {
        tokio::task::yield_now().await;
        place.restore(&new, 1);
    };
    let (stale, ()) = tokio::join!(biased; probe(&mut desk), caught_up);
    let trouble = stale.trouble.expect("it was not used");
    assert!(trouble.to_string().contains("an old answer"), "{trouble}");
    let next = probe(&mut desk).await;
    assert!(matches!(next.event, Some(Event::Probed { .. })), "{next:?}");

    place.restore(&old, 1);
    let restored = probe(&mut desk).await.trouble.expect("it stays so");
    assert_eq!(restored.kind, StoreErrorKind::Sealed, "{restored}");
}

#[test]
fn a_seal_that_fails_again_and_again_is_told_once_and_when_it_is_over() {
    let place = MemoryPlace::new(Clock::Real);
    let mut clerk = desk(&place).idle.unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let text = logged(|| {
        runtime.block_on(async {
            place.set_fault(Fault::Away);
            for _ in 0..5 {
                clerk.seal((CellId(1), Told::default()), "restored", true).await;
            }
            place.set_fault(Fault::None);
            clerk.seal((CellId(1), Told::default()), "restored", true).await;
        });
    });
    assert_eq!(text.matches("could not be sealed").count(), 1, "{text}");
    assert_eq!(text.matches("is sealed for the others too").count(), 1, "{text}");
}

/// Closing them would stop the minting, and nothing could follow.
#[tokio::test(start_paused = true)]
async fn claims_of_an_earlier_daemon_stay_open_until_a_lease_may_be_taken() {
    let place = MemoryPlace::new(Clock::At(UnixMs(1)));
    place.make_cell();
    let anchor = |desk: &Desk<MemoryStore>| desk.anchor().cloned().into_iter().collect();
    let mut desk = desk(&place);
    assert!(matches!(
        probe(&mut desk).await.event,
        Some(Event::ProbeFailed { .. })
    ));
    let remembered = Remembered {
        anchors: anchor(&desk),
        ..Remembered::default()
    };
    let waits = probe_with(&mut desk, remembered.clone()).await;
    assert!(
        matches!(waits.event, Some(Event::ProbeFailed { .. })),
        "{:?}",
        waits.event
    );
    let why = waits.trouble.expect("it says why").to_string();
    assert!(why.contains("no lease is taken for"), "{why}");

    let recent = Remembered {
        asked: Some(tokio::time::Instant::now() - Duration::from_secs(9)),
        ..remembered.clone()
    };
    let at_once = probe_with(&mut desk, recent.clone()).await;
    assert!(matches!(at_once.event, Some(Event::Probed { .. })), "{at_once:?}");

    tokio::time::advance(Duration::from_millis(timing().grace_ms(REACH))).await;
    let waited = probe_with(&mut desk, remembered).await;
    assert!(matches!(waited.event, Some(Event::Probed { .. })), "{waited:?}");
}

/// A seal that nobody has written down begins to count for the operator, whatever the epoch.
#[tokio::test]
async fn whoever_finds_a_seal_writes_down_when_and_what_epoch_it_knows() {
    let place = MemoryPlace::new(Clock::Real);
    place.make_cell();
    let mut desk = desk(&place);
    probe(&mut desk).await;
    let backup = place.backup();
    place.restore(&backup, 2);
    let sealed = probe(&mut desk).await.trouble.expect("it is another store");
    assert_eq!(sealed.kind, StoreErrorKind::Sealed, "{sealed}");
    let mut clerk = desk.idle.unwrap();
    let survey = clerk.store.survey().await.unwrap().unwrap();
    assert!(survey.sealed_at.is_some(), "{:?}", survey.sealed_reason);
}
