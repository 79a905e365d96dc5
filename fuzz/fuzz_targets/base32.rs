//! `idgen_decode()`: an id and its one text, or a refusal; as a slow reading of the rules says, never a guess.
#![no_main]

use idgen_core::base32::{LEN, decode, encode};
use libfuzzer_sys::fuzz_target;

const ALPHABET: &str = "0123456789ABCDEFGHJKMNPQRSTVWXYZ";

/// The rules, written down once more: hyphens do not count, I and L are 1, O is 0, case does not matter.
fn canonical(text: &[u8]) -> Option<String> {
    let digits: Vec<u8> = text.iter().copied().filter(|byte| *byte != b'-').collect();
    let text = String::from_utf8(digits).ok()?.to_ascii_uppercase();
    let text = text.replace(['I', 'L'], "1").replace('O', "0");
    let known = text.chars().all(|digit| ALPHABET.contains(digit));
    (known && text.chars().count() == LEN).then_some(text)
}

fn value(canonical: &str) -> u128 {
    canonical.chars().fold(0, |value, digit| {
        value * 32 + ALPHABET.find(digit).expect("a digit") as u128
    })
}

fuzz_target!(|text: &[u8]| {
    let expected = canonical(text).filter(|canonical| value(canonical) <= i64::MAX as u128);
    match decode(text) {
        Ok(id) => {
            let written = encode(id).expect("what was read is positive");
            assert_eq!(Some(String::from_utf8_lossy(&written).into_owned()), expected);
            assert_eq!(decode(&written), Ok(id));
        }
        Err(error) => {
            assert_eq!(expected, None, "refused: {error}");
            assert!(error.to_string().len() < 200);
        }
    }
});
