//! Which process updates which elements of the parameters.
//!
//! Parameters are cut into blocks, see [`shard_alignment`](taipan::optim::shard_alignment), and
//! consecutive blocks into buckets, in the order in which backward completes gradients: the last
//! parameter's first. Each process owns an equal share of each bucket, rather than whole parameters
//! or one range of all: so every bucket can be sent as soon as it is complete, and no process
//! receives or computes more than the others, however large a single parameter is.

use std::ops::Range;

/// Elements of a parameter, counted row by row, that one process updates.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Slice {
    pub(super) parameter: usize,
    pub(super) elements: Range<usize>,
    pub(super) owner: usize,
}

/// All slices, in the order of parameters and their elements, and by bucket.
pub(super) struct Layout {
    pub(super) slices: Vec<Slice>,
    /// Of each bucket, the indices of its slices.
    pub(super) buckets: Vec<Vec<usize>>,
}

impl Layout {
    /// For parameters of these lengths, in buckets of at most so many blocks.
    pub(super) fn new(lens: &[usize], block: usize, ranks: usize, bucket: usize) -> Layout {
        let mut cut: Vec<(usize, Slice)> = Vec::new();
        let blocks: usize = lens.iter().map(|len| len.div_ceil(block)).sum();
        // Blocks before the current position, counted from the last parameter on.
        let mut done = 0;
        for (parameter, &len) in lens.iter().enumerate().rev() {
            let (first, end) = (done, done + len.div_ceil(block));
            while done < end {
                let index = done / bucket;
                let size = bucket.min(blocks - index * bucket);
                let at = done - index * bucket;
                // The share of a rank begins at `size·rank/ranks`.
                let owner = ((at + 1) * ranks - 1) / size;
                let until = index * bucket + size * (owner + 1) / ranks;
                let until = until.min(end);
                let elements = (done - first) * block..((until - first) * block).min(len);
                cut.push((index, Slice { parameter, elements, owner }));
                done = until;
            }
        }
        cut.sort_by_key(|(_, slice)| (slice.parameter, slice.elements.start));
        let mut buckets = vec![Vec::new(); blocks.div_ceil(bucket)];
        for (i, (bucket, _)) in cut.iter().enumerate() {
            buckets[*bucket].push(i);
        }
        Layout { slices: cut.into_iter().map(|(_, slice)| slice).collect(), buckets }
    }

    /// The slices of a process, in order.
    pub(super) fn of(&self, rank: usize) -> impl Iterator<Item = (usize, &Slice)> {
        self.slices.iter().enumerate().filter(move |(_, slice)| slice.owner == rank)
    }

    /// The slices of a process in a bucket.
    pub(super) fn in_bucket(&self, bucket: usize, rank: usize) -> impl Iterator<Item = usize> {
        let slices = self.buckets[bucket].iter().copied();
        slices.filter(move |i| self.slices[*i].owner == rank)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_element_has_one_owner_and_shares_are_equal() {
        let lens = [5000, 1, 0, 64, 12345, 1024, 1023, 1025, 7];
        for (ranks, bucket) in [(1, 1), (1, 100), (2, 3), (3, 8), (4, 1000), (7, 4), (64, 64)] {
            let layout = Layout::new(&lens, 64, ranks, bucket);
            let mut seen = lens.map(|_| 0);
            for Slice { parameter, elements, owner } in &layout.slices {
                assert_eq!(elements.start, seen[*parameter], "in order and without gaps");
                assert!(elements.start % 64 == 0 && !elements.is_empty() && *owner < ranks);
                seen[*parameter] = elements.end;
            }
            assert_eq!(seen, lens, "{ranks} ranks, buckets of {bucket}");
            for (i, slices) in layout.buckets.iter().enumerate() {
                let blocks = |rank| -> usize {
                    let lens = layout.in_bucket(i, rank).map(|i| layout.slices[i].elements.len());
                    lens.map(|len| len.div_ceil(64)).sum()
                };
                let shares: Vec<usize> = (0..ranks).map(blocks).collect();
                let (min, max) = (shares.iter().min().unwrap(), shares.iter().max().unwrap());
                assert!(max - min <= 1 && shares.iter().sum::<usize>() <= bucket, "{shares:?}");
                // What is complete after it is not needed for it.
                let parameters = slices.iter().map(|i| layout.slices[*i].parameter);
                let before = layout.buckets[..i].iter().flatten();
                let before = before.map(|i| layout.slices[*i].parameter).min();
                assert!(parameters.max() <= before.or(Some(lens.len())));
            }
        }
    }
}
