//! Sealed ids under fixed keys: what was sealed opens, nothing else does. And any key file is keys or a refusal.
#![no_main]

use arbitrary::Arbitrary;
use idgen_core::public_id::{Prefix, parse};
use idgen_core::seal::{KEYS_MAX, SealKeys};
use libfuzzer_sys::fuzz_target;
use std::sync::LazyLock;

const OLD: &str = "000102030405060708090a0b0c0d0e0f";
const NEW: &str = "202122232425262728292a2b2c2d2e2f303132333435363738393a3b3c3d3e3f";

static BOTH: LazyLock<SealKeys> = LazyLock::new(|| keys(&format!("{NEW}\n{OLD}")));
static SINGLE: LazyLock<[SealKeys; 2]> = LazyLock::new(|| [keys(NEW), keys(OLD)]);

fn keys(file: &str) -> SealKeys {
    SealKeys::parse(file.as_bytes()).expect("good keys")
}

#[derive(Arbitrary, Debug)]
struct Input<'a> {
    id: i64,
    prefix: &'a [u8],
    text: &'a [u8],
    file: &'a [u8],
}

fuzz_target!(|input: Input<'_>| {
    if let Ok(prefix) = Prefix::parse(input.prefix) {
        for one in &*SINGLE {
            assert_eq!(BOTH.open(one.seal(input.id, prefix), prefix), Some(input.id));
        }
    }
    if let Ok((prefix, number)) = parse(input.text)
        && let Some(id) = BOTH.open(number, prefix)
    {
        // Whoever finds such a text without a key has broken AES, or has copied it from a sealed one.
        assert!(SINGLE.iter().any(|one| one.seal(id, prefix) == number));
    }
    match SealKeys::parse(input.file) {
        Ok(keys) => assert!((1..=KEYS_MAX).contains(&keys.count())),
        Err(error) => assert!(error.to_string().len() < 100, "nothing of the file is shown"),
    }
});
