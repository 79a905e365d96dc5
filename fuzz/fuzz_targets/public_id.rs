//! Base 62 and prefixed texts: exactly what is written is read.
#![no_main]

use idgen_core::base62;
use idgen_core::public_id::{Prefix, compose, parse};
use libfuzzer_sys::fuzz_target;

const ALPHABET: &str = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

/// Digit by digit, with every step checked.
fn slow(text: &[u8]) -> Option<u128> {
    let text = std::str::from_utf8(text)
        .ok()
        .filter(|text| text.len() == base62::LEN)?;
    text.chars().try_fold(0_u128, |number, digit| {
        let digit = ALPHABET.find(digit)? as u128;
        number.checked_mul(62)?.checked_add(digit)
    })
}

fn number(text: &[u8]) {
    let decoded = base62::decode(text).ok();
    assert_eq!(decoded, slow(text));
    if let Some(number) = decoded {
        assert_eq!(base62::encode(number)[..], *text);
    }
}

fuzz_target!(|bytes: &[u8]| {
    number(bytes);
    match parse(bytes) {
        Ok((prefix, number)) => assert_eq!(compose(prefix, number).as_str().as_bytes(), bytes),
        Err(error) => {
            assert!(error.to_string().len() < 200);
            // Not refused without a reason: prefix, underscore and number are not all there.
            if let Some((prefix, rest)) = std::str::from_utf8(bytes)
                .ok()
                .and_then(|text| text.split_once('_'))
            {
                assert!(Prefix::parse(prefix.as_bytes()).is_err() || slow(rest.as_bytes()).is_none());
            }
        }
    }
    if let Some((front, rest)) = bytes.split_first_chunk::<16>() {
        let made = base62::encode(u128::from_be_bytes(*front));
        assert_eq!(base62::decode(&made), Ok(u128::from_be_bytes(*front)));
        if let Ok(prefix) = Prefix::parse(rest) {
            let text = compose(prefix, u128::from_be_bytes(*front));
            assert_eq!(
                parse(text.as_str().as_bytes()),
                Ok((prefix, u128::from_be_bytes(*front)))
            );
        }
    }
});
