//! A probe as bytes, for a checkpoint.

use super::axis::{Axes, Axis, Stream};
use super::gaps::{Gap, Gaps};
use super::{Counts, Limits, Origin, Probe};
use crate::audit::leases::Leases;
use crate::audit::recent::{Grants, Prints};
use crate::audit::saved::{Damaged, In, Out, Saved};
use crate::audit::{Ranges, Sequence};
use std::collections::HashMap;

/// What the bytes begin with: another form of them gets another one.
const FORM: u32 = 1;

impl Probe {
    /// Hands on everything that it knows, with what is known of leases, piece by piece.
    pub fn save(&self, leases: &Leases, to: &mut dyn FnMut(&[u8])) {
        let mut out = Out::new(to);
        out.put(&FORM);
        out.put(&self.counts);
        out.put(&(self.cuts.len() as u64));
        for (partition, cuts) in &self.cuts {
            out.put(&(*partition, *cuts));
        }
        out.put(&(self.axes.len() as u64));
        self.axes.iter().for_each(|axis| out.put(axis));
        out.put(&(self.gaps.iter().len() as u64));
        for ((at, source), gaps) in self.gaps.iter() {
            out.put(&(*at as u64, *source));
            out.list(gaps.iter().copied());
        }
        self.prints.put(&mut out);
        self.grants.put(&mut out);
        leases.put(&mut out);
        out.end();
    }

    /// The probe that was saved, under these limits. `identities`: as [`Leases::new`] has it.
    ///
    /// # Errors
    /// [`Damaged`]: the bytes are of no probe, or of a later one.
    pub fn load(bytes: &[u8], limits: Limits, identities: usize) -> Result<(Self, Leases), Damaged> {
        let mut from = In::new(bytes);
        if from.take::<u32>()? != FORM {
            return Err(Damaged("it is of another version of the program"));
        }
        let mut probe = Self::new(limits);
        probe.counts = from.take()?;
        let cuts: HashMap<i32, u32> = from.list()?.into_iter().collect();
        probe.cuts = cuts;
        let mut axes = Axes::default();
        for _ in 0..from.count()? {
            axes.add(from.take()?);
        }
        if axes.spans() > limits.spans {
            axes.blur(limits.spans);
        }
        let known = axes.len();
        probe.axes = axes;
        let mut gaps = Gaps::default();
        for _ in 0..from.count()? {
            let (at, source): (u64, u128) = from.take()?;
            let at = usize::try_from(at).ok().filter(|at| *at < known);
            let at = at.ok_or(Damaged("a gap of it is of no tag"))?;
            for gap in from.list::<Gap>()? {
                gaps.add((at, source), gap);
            }
        }
        probe.gaps = gaps;
        probe.prints = Prints::take(&mut from, limits.recent, known)?;
        probe.grants = Grants::take(&mut from, limits.recent, known)?;
        let leases = Leases::take(&mut from, identities)?;
        from.end()?;
        Ok((probe, leases))
    }
}

impl Saved for Origin {
    fn put(&self, out: &mut Out<'_>) {
        (self.source, self.event_id).put(out);
        (self.partition, self.offset).put(out);
    }

    fn take(from: &mut In<'_>) -> Result<Self, Damaged> {
        let (source, event_id) = from.take()?;
        let (partition, offset) = from.take()?;
        Ok(Self {
            source,
            event_id,
            partition,
            offset,
        })
    }
}

impl Saved for Counts {
    fn put(&self, out: &mut Out<'_>) {
        (self.events, self.copies).put(out);
        (self.copies_unjudged, self.grants_unjudged).put(out);
        (self.untracked, self.holes).put(out);
    }

    fn take(from: &mut In<'_>) -> Result<Self, Damaged> {
        let (events, copies) = from.take()?;
        let (copies_unjudged, grants_unjudged) = from.take()?;
        let (untracked, holes) = from.take()?;
        Ok(Self {
            events,
            copies,
            copies_unjudged,
            grants_unjudged,
            untracked,
            holes,
        })
    }
}

impl Saved for Gap {
    fn put(&self, out: &mut Out<'_>) {
        (self.numbers, self.left).put(out);
        (self.before, self.out_of_sight).put(out);
    }

    fn take(from: &mut In<'_>) -> Result<Self, Damaged> {
        let (numbers, left) = from.take()?;
        let (before, out_of_sight) = from.take()?;
        Ok(Self {
            numbers,
            left,
            before,
            out_of_sight,
        })
    }
}

impl Saved for Ranges {
    fn put(&self, out: &mut Out<'_>) {
        out.put(&(self.len() as u64));
        self.iter().for_each(|span| out.put(&span));
    }

    fn take(from: &mut In<'_>) -> Result<Self, Damaged> {
        let mut ranges = Self::new();
        for _ in 0..from.count()? {
            if !ranges.insert(from.take()?).is_empty() {
                return Err(Damaged("ranges of it overlap"));
            }
        }
        Ok(ranges)
    }
}

impl Saved for Stream {
    fn put(&self, out: &mut Out<'_>) {
        (self.source, self.sequence.last()).put(out);
        self.sequence.missing().put(out);
        (self.newest_us, self.cuts).put(out);
    }

    fn take(from: &mut In<'_>) -> Result<Self, Damaged> {
        let (source, last) = from.take()?;
        let missing: Ranges = from.take()?;
        let sequence =
            Sequence::with(last, missing).ok_or(Damaged("more of a stream is missing than it has"))?;
        let (newest_us, cuts) = from.take()?;
        Ok(Self {
            source,
            sequence,
            newest_us,
            cuts,
        })
    }
}

impl Saved for Axis {
    fn put(&self, out: &mut Out<'_>) {
        out.put(&self.space);
        out.put(&self.tag);
        out.put(&self.granted);
        out.put(&self.blurred);
        out.put(&(self.streams.len() as u64));
        self.streams.iter().for_each(|stream| out.put(stream));
    }

    fn take(from: &mut In<'_>) -> Result<Self, Damaged> {
        Ok(Self {
            space: from.take()?,
            tag: from.take()?,
            granted: from.take()?,
            blurred: from.take()?,
            streams: from.list()?,
        })
    }
}
