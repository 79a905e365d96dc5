//! What the probe knows as bytes, and back: numbers in little endian, lists with their lengths before them. Whoever keeps the
//! bytes sees to it that they are whole; what does not make sense is refused all the same.

use super::Span;
use core::fmt;

/// Bytes that are no state of a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Damaged(pub(super) &'static str);

impl fmt::Display for Damaged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl core::error::Error for Damaged {}

/// So much is handed on at once.
const CHUNK: usize = 1 << 16;

/// Where bytes go.
pub(super) struct Out<'o> {
    to: &'o mut dyn FnMut(&[u8]),
    chunk: Vec<u8>,
}

impl<'o> Out<'o> {
    pub(super) fn new(to: &'o mut dyn FnMut(&[u8])) -> Self {
        Self {
            to,
            chunk: Vec::with_capacity(CHUNK + 64),
        }
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.chunk.extend_from_slice(bytes);
        if self.chunk.len() >= CHUNK {
            self.flush();
        }
    }

    fn flush(&mut self) {
        (self.to)(&self.chunk);
        self.chunk.clear();
    }

    pub(super) fn put(&mut self, value: &impl Saved) {
        value.put(self);
    }

    /// A list, by its length and its items.
    pub(super) fn list<T: Saved>(&mut self, items: impl ExactSizeIterator<Item = T>) {
        self.put(&(items.len() as u64));
        items.for_each(|item| item.put(self));
    }

    pub(super) fn end(mut self) {
        self.flush();
    }
}

/// Where bytes come from.
pub(super) struct In<'i> {
    rest: &'i [u8],
}

impl<'i> In<'i> {
    pub(super) const fn new(bytes: &'i [u8]) -> Self {
        Self { rest: bytes }
    }

    fn bytes(&mut self, len: usize) -> Result<&'i [u8], Damaged> {
        let (bytes, rest) = self.rest.split_at_checked(len).ok_or(Damaged("it is cut off"))?;
        self.rest = rest;
        Ok(bytes)
    }

    pub(super) fn take<T: Saved>(&mut self) -> Result<T, Damaged> {
        T::take(self)
    }

    /// How many items a list has: no more than there are bytes.
    pub(super) fn count(&mut self) -> Result<usize, Damaged> {
        let count = usize::try_from(self.take::<u64>()?).unwrap_or(usize::MAX);
        if count > self.rest.len() {
            return Err(Damaged("a list of it is longer than all of it"));
        }
        Ok(count)
    }

    pub(super) fn list<T: Saved>(&mut self) -> Result<Vec<T>, Damaged> {
        (0..self.count()?).map(|_| self.take()).collect()
    }

    pub(super) fn end(self) -> Result<(), Damaged> {
        if self.rest.is_empty() {
            Ok(())
        } else {
            Err(Damaged("there is more than it should be"))
        }
    }
}

/// Something that is saved.
pub(super) trait Saved: Sized {
    fn put(&self, out: &mut Out<'_>);
    fn take(from: &mut In<'_>) -> Result<Self, Damaged>;
}

macro_rules! numbers {
    ($($number:ty),*) => {
        $(impl Saved for $number {
            fn put(&self, out: &mut Out<'_>) {
                out.bytes(&self.to_le_bytes());
            }

            fn take(from: &mut In<'_>) -> Result<Self, Damaged> {
                let mut bytes = [0; size_of::<$number>()];
                bytes.copy_from_slice(from.bytes(size_of::<$number>())?);
                Ok(<$number>::from_le_bytes(bytes))
            }
        })*
    };
}

numbers!(u8, u16, u32, i32, u64, i64, u128);

impl Saved for bool {
    fn put(&self, out: &mut Out<'_>) {
        u8::from(*self).put(out);
    }

    fn take(from: &mut In<'_>) -> Result<Self, Damaged> {
        match from.take::<u8>()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Damaged("a truth of it is neither true nor false")),
        }
    }
}

impl Saved for String {
    fn put(&self, out: &mut Out<'_>) {
        out.put(&(self.len() as u64));
        out.bytes(self.as_bytes());
    }

    fn take(from: &mut In<'_>) -> Result<Self, Damaged> {
        let len = from.count()?;
        let text = str::from_utf8(from.bytes(len)?).map_err(|_| Damaged("a text of it is none"))?;
        Ok(text.to_owned())
    }
}

impl<T: Saved> Saved for Option<T> {
    fn put(&self, out: &mut Out<'_>) {
        self.is_some().put(out);
        if let Some(value) = self {
            value.put(out);
        }
    }

    fn take(from: &mut In<'_>) -> Result<Self, Damaged> {
        from.take::<bool>()?.then(|| from.take()).transpose()
    }
}

impl<A: Saved, B: Saved> Saved for (A, B) {
    fn put(&self, out: &mut Out<'_>) {
        self.0.put(out);
        self.1.put(out);
    }

    fn take(from: &mut In<'_>) -> Result<Self, Damaged> {
        Ok((from.take()?, from.take()?))
    }
}

impl Saved for Span {
    fn put(&self, out: &mut Out<'_>) {
        (self.lo(), self.hi()).put(out);
    }

    fn take(from: &mut In<'_>) -> Result<Self, Damaged> {
        let (lo, hi) = from.take()?;
        Self::new(lo, hi).ok_or(Damaged("a range of it ends before it begins"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes_of(value: &impl Saved) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut keep = |chunk: &[u8]| bytes.extend_from_slice(chunk);
        let mut out = Out::new(&mut keep);
        out.put(value);
        out.end();
        bytes
    }

    #[test]
    fn what_was_saved_comes_back_and_what_is_cut_off_does_not() {
        let value = (Some("é".to_owned()), (u128::MAX, (-7_i64, true)));
        let bytes = bytes_of(&value);
        let mut from = In::new(&bytes);
        assert_eq!(from.take(), Ok(value));
        assert_eq!(from.end(), Ok(()));
        for len in 0..bytes.len() {
            let cut = In::new(&bytes[..len]).take::<(Option<String>, (u128, (i64, bool)))>();
            assert!(cut.is_err(), "{len} bytes");
        }
    }

    #[test]
    fn a_length_that_cannot_be_takes_no_memory() {
        assert_eq!(
            In::new(&bytes_of(&u64::MAX)).list::<u8>(),
            Err(Damaged("a list of it is longer than all of it"))
        );
        assert!(In::new(&bytes_of(&(5_i64, 4_i64))).take::<Span>().is_err());
        assert!(In::new(&[2]).take::<bool>().is_err());
        assert!(In::new(&[2]).end().is_err());
    }
}
