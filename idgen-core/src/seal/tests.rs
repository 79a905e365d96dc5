use super::*;
use crate::base62;
use crate::public_id;
use proptest::prelude::*;

/// 32 bytes 00 to 1f, and the first 16 of them: the keys of FIPS 197, appendix C.
const KEY_256: &str = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";
const KEY_128: &str = "000102030405060708090a0b0c0d0e0f";

fn keys(file: &str) -> SealKeys {
    SealKeys::parse(file.as_bytes()).unwrap()
}

fn ord() -> Prefix<'static> {
    Prefix::parse(b"ord").unwrap()
}

fn error(file: impl AsRef<[u8]>) -> Option<KeyFileError> {
    SealKeys::parse(file.as_ref()).err()
}

#[test]
fn the_cipher_is_aes_as_published() {
    let plain = 0x0011_2233_4455_6677_8899_aabb_ccdd_eeff;
    for (key, cipher_text) in [
        (KEY_128, 0x69c4_e0d8_6a7b_0430_d8cd_b780_70b4_c55a),
        (KEY_256, 0x8ea2_b7ca_5167_45bf_eafc_4990_4b49_6089),
    ] {
        let cipher = cipher(key.as_bytes()).unwrap();
        assert_eq!(cipher.encrypt(plain), cipher_text);
        assert_eq!(cipher.decrypt(cipher_text), plain);
    }
}

/// The hash of the block is that of RFC 6234's SHA-256: "abc" is one of its test cases.
#[test]
fn the_hash_is_the_front_of_sha_256() {
    assert_eq!(prefix_hash(Prefix::parse(b"abc").unwrap()), 0xba78_16bf_8f01_cfea);
}

#[test]
fn the_first_key_seals_and_all_open() {
    let (old, new) = (keys(KEY_128), keys(KEY_256));
    let both = keys(&format!("{KEY_256}\n{KEY_128}\n"));
    assert_eq!((old.count(), both.count()), (1, 2));
    assert_eq!(both.seal(42, ord()), new.seal(42, ord()));
    for sealed in [old.seal(42, ord()), new.seal(42, ord())] {
        assert_eq!(both.open(sealed, ord()), Some(42));
    }
    assert_eq!(
        new.open(old.seal(42, ord()), ord()),
        None,
        "a key that was dropped is gone"
    );
}

#[test]
fn another_prefix_does_not_open() {
    let keys = keys(KEY_256);
    let sealed = keys.seal(42, ord());
    for other in ["or", "orde", "inv", "o"] {
        assert_eq!(keys.open(sealed, Prefix::parse(other.as_bytes()).unwrap()), None);
    }
}

/// Every text that differs in one character from a sealed one.
#[test]
fn every_changed_character_is_refused() {
    let keys = keys(KEY_256);
    let text = public_id::compose(ord(), keys.seal(914_921_407_366_844_416, ord()));
    let mut refused = 0;
    for at in 0..text.as_str().len() {
        for byte in 0..=u8::MAX {
            let mut changed = text.as_str().as_bytes().to_vec();
            if changed[at] == byte {
                continue;
            }
            changed[at] = byte;
            if let Ok((prefix, number)) = public_id::parse(&changed) {
                assert_eq!(keys.open(number, prefix), None, "byte {byte} at {at}");
                refused += 1;
            }
        }
    }
    assert!(refused > base62::LEN * 50, "only {refused} were well-formed");
}

#[test]
fn what_a_key_file_may_hold() {
    let file = format!(
        "# newest first\r\n\n  {KEY_256}\t\r\n#{KEY_128}\n   # old\n{}",
        KEY_128.to_uppercase()
    );
    assert_eq!(keys(&file).count(), 2);
    assert_eq!(keys(&format!("{KEY_128}\n").repeat(KEYS_MAX)).count(), KEYS_MAX);
}

#[test]
fn what_a_key_file_must_not_hold() {
    for empty in ["", "\n\n", "# a comment only"] {
        assert_eq!(error(empty), Some(KeyFileError::Empty), "{empty:?}");
    }
    let with_second_line = |line: &str| error(format!("{KEY_256}\n{line}"));
    for bad in [
        "0",
        "00",
        &KEY_128[1..],
        &KEY_256[2..],
        &format!("{KEY_256}00"),
        &format!("{KEY_128}0"),
        &format!("{KEY_256}0"),
        &format!("{KEY_128} # mine"),
        &format!("0x{KEY_128}"),
        &KEY_128.replace('f', "g"),
        &KEY_128.replace('0', "０"),
        "\0",
        "\u{feff}",
    ] {
        assert_eq!(
            with_second_line(bad),
            Some(KeyFileError::Line { line: 2 }),
            "{bad:?}"
        );
    }
    assert_eq!(
        error(format!("{KEY_128}\n").repeat(KEYS_MAX + 1)),
        Some(KeyFileError::TooMany)
    );
    assert_eq!(error(vec![b'\n'; FILE_LEN_MAX + 1]), Some(KeyFileError::TooLarge));
    assert_eq!(error(vec![b'\n'; FILE_LEN_MAX]), Some(KeyFileError::Empty));
}

#[test]
fn nothing_of_a_key_is_shown() {
    let keys = keys(KEY_256);
    assert_eq!(format!("{keys:?}"), "SealKeys { count: 1, .. }");
    let bad = format!("{KEY_256}beef");
    let error = error(&bad).unwrap();
    assert_eq!(
        error.to_string(),
        "line 1 is no key of 32 or 64 hexadecimal digits"
    );
    assert_eq!(format!("{error:?}"), "Line { line: 1 }");
}

proptest! {
    #[test]
    fn every_id_comes_back(id in any::<i64>(), key in "[0-9a-f]{64}", prefix in "[a-z][a-z0-9]{0,15}") {
        let keys = keys(&key);
        let prefix = Prefix::parse(prefix.as_bytes()).unwrap();
        prop_assert_eq!(keys.open(keys.seal(id, prefix), prefix), Some(id));
    }

    #[test]
    fn random_blocks_do_not_open(sealed in any::<u128>()) {
        prop_assert_eq!(keys(KEY_256).open(sealed, ord()), None);
    }

    #[test]
    fn any_file_is_keys_or_an_error(file in prop::collection::vec(any::<u8>(), 0..400)) {
        if let Ok(keys) = SealKeys::parse(&file) {
            prop_assert!((1..=KEYS_MAX).contains(&keys.count()));
        }
    }
}
