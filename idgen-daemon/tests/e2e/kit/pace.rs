//! How long something took, and how late the machine itself was meanwhile: a bound that a product keeps says nothing
//! of a machine whose processors are busy with other tests.
//!
//! Source: `/proc/pressure` of Linux (PSI), `some`: the time in which at least one task waited for a processor or a
//! disk. Without PSI nothing is allowed for.

use std::fs;
use std::sync::{Mutex, Once, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// Short beside every bound under test.
const SAMPLE_EVERY: Duration = Duration::from_millis(50);
/// How long a machine of CI has been seen to stand still.
const STALL: Duration = Duration::from_secs(5);
const RESOURCES: [&str; 2] = ["cpu", "io"];

/// When it was read, and the pressure up to then.
type Sample = (Instant, Duration);

static SAMPLES: Mutex<Vec<Sample>> = Mutex::new(Vec::new());
static SAMPLER: Once = Once::new();

/// From here on it is known how late the machine was; the kit's servers call it as they start.
pub fn observe() {
    SAMPLER.call_once(|| {
        sample();
        thread::Builder::new()
            .name("pressure".into())
            .spawn(|| {
                loop {
                    thread::sleep(SAMPLE_EVERY);
                    sample();
                }
            })
            .expect("spawn the sampler");
    });
}

fn sample() {
    let total = RESOURCES.iter().filter_map(|resource| pressure(resource)).sum();
    let mut samples = SAMPLES.lock().unwrap_or_else(PoisonError::into_inner);
    samples.push((Instant::now(), total));
}

fn pressure(resource: &str) -> Option<Duration> {
    parse(&fs::read_to_string(format!("/proc/pressure/{resource}")).ok()?)
}

fn parse(text: &str) -> Option<Duration> {
    let some = text.lines().find(|line| line.starts_with("some "))?;
    let total = some.split_once("total=")?.1;
    total.trim().parse().ok().map(Duration::from_micros)
}

/// How long somebody on this machine waited between two moments, at most the time between them.
pub fn late(began: Instant, ended: Instant) -> Duration {
    observe();
    sample();
    let samples = SAMPLES.lock().unwrap_or_else(PoisonError::into_inner);
    late_by(&samples, began, ended)
}

/// By the last sample before, or the first one that there is, and the first one after.
fn late_by(samples: &[Sample], began: Instant, ended: Instant) -> Duration {
    let before = samples.partition_point(|(at, _)| *at <= began).saturating_sub(1);
    let after = samples
        .partition_point(|(at, _)| *at < ended)
        .min(samples.len() - 1);
    let waited = samples[after].1.saturating_sub(samples[before].1);
    waited.min(ended.saturating_duration_since(began))
}

/// What is allowed for at most beside a limit: on a machine that is busy all the time nothing would be judged otherwise.
fn allowed_for(late: Duration, limit: Duration) -> Duration {
    late.min((limit * 2).max(STALL))
}

/// What is to be allowed for between two moments beside a limit: how late the machine was, within reason.
pub fn allowance(began: Instant, ended: Instant, limit: Duration) -> Duration {
    allowed_for(late(began, ended), limit)
}

/// Fails the test when `what` took longer than `limit` and than what the machine was late; returns how long it took.
pub fn assert_took(began: Instant, ended: Instant, limit: Duration, what: &str) -> Duration {
    let took = ended.saturating_duration_since(began);
    let late = allowance(began, ended, limit);
    println!("{what}: {took:?}, {limit:?} at most; {late:?} for the machine");
    assert!(
        took <= limit + late,
        "{what}: {took:?}, {limit:?} at most and {late:?} for the machine"
    );
    took
}

/// [`assert_took`] up to now.
pub fn assert_within(began: Instant, limit: Duration, what: &str) -> Duration {
    assert_took(began, Instant::now(), limit, what)
}

#[test]
fn the_pressure_of_a_resource_is_its_time_in_which_some_waited() {
    let text = "some avg10=0.07 avg60=9.00 avg300=46.41 total=17243432777\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=5\n";
    assert_eq!(parse(text), Some(Duration::from_micros(17_243_432_777)));
    assert_eq!(parse("full total=5\n"), None);
    assert_eq!(parse("some total=many\n"), None);
}

#[test]
fn a_machine_is_late_by_the_samples_around_an_interval_and_never_longer_than_it() {
    let (zero, ms) = (Instant::now(), Duration::from_millis);
    let samples: Vec<Sample> = [(0, 10), (50, 10), (100, 40), (150, 90)]
        .map(|(at, total)| (zero + ms(at), ms(total)))
        .into();
    let late = |from, to| late_by(&samples, zero + ms(from), zero + ms(to));
    assert_eq!(late(0, 50), ms(0));
    assert_eq!(late(50, 100), ms(30));
    assert_eq!(
        late(60, 90),
        ms(30),
        "the whole of a sample that the interval lies in"
    );
    assert_eq!(late(0, 900), ms(80), "up to the last one");
    assert_eq!(late(90, 110), ms(20), "as long as the interval");
}

#[test]
fn a_machine_that_is_always_late_has_its_bound_too() {
    let s = Duration::from_secs;
    assert_eq!(allowed_for(s(1), s(6)), s(1));
    assert_eq!(allowed_for(s(100), s(6)), s(12));
    assert_eq!(allowed_for(s(100), s(1)), s(5), "a short limit too");
}
