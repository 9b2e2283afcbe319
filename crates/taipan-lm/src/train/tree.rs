//! The order in which the gradients of a step's micro-batches are added.
//!
//! Micro-batches are the leaves of a binary tree: a node of `2ᵏ` of them begins at a multiple of
//! `2ᵏ` and is the sum of its two halves. What is left if their number is not a power of two is
//! added from the right, the smaller node to the larger. With 7, that is
//!
//! ```text
//! ((0 + 1) + (2 + 3)) + ((4 + 5) + 6)
//! ```
//!
//! The order follows from the number of micro-batches alone, not from how many processes compute
//! them: each process adds what is below its nodes, and whoever needs the sum adds the nodes.

use std::ops::Range;

use taipan::Tensor;

use crate::Result;

/// What is summed up.
pub(super) trait Addend: Sized {
    fn plus(self, other: Self) -> Result<Self>;
}

/// Gradients and losses: a sum of f16 or bf16 is f32, so that it is not rounded.
impl Addend for Tensor {
    fn plus(self, other: Tensor) -> Result<Tensor> {
        let wide = self.dtype().wider();
        Ok(self.cast(wide)?.add(&other.cast(wide)?)?)
    }
}

/// The sum of the micro-batches in a range, as a node of the tree; none if there is nothing to
/// predict in any of them.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Node<T> {
    start: usize,
    len: usize,
    pub(super) sum: Option<T>,
}

/// The ranges of micro-batches of a process, each a node of the tree, the largest there are.
pub(super) fn nodes(range: Range<usize>) -> Vec<Range<usize>> {
    let mut tree = Tree::<Nothing>::default();
    range.for_each(|leaf| tree.push_node(leaf..leaf + 1, None).expect("nothing is added"));
    tree.0.into_iter().map(|node| node.start..node.start + node.len).collect()
}

/// To see which nodes there are.
enum Nothing {}

impl Addend for Nothing {
    fn plus(self, _: Nothing) -> Result<Nothing> {
        match self {}
    }
}

/// Sums of consecutive micro-batches, of which as few are kept as the tree allows: about one for
/// each binary digit of their number.
pub(super) struct Tree<T>(Vec<Node<T>>);

impl<T> Default for Tree<T> {
    fn default() -> Tree<T> {
        Tree(Vec::new())
    }
}

impl<T: Addend> Tree<T> {
    /// Add the micro-batch after the last one.
    pub(super) fn push(&mut self, leaf: usize, value: Option<T>) -> Result<()> {
        self.push_node(leaf..leaf + 1, value)
    }

    /// Add the next node.
    pub(super) fn push_node(&mut self, range: Range<usize>, sum: Option<T>) -> Result<()> {
        let mut node = Node { start: range.start, len: range.len(), sum };
        let is_left =
            |left: &mut Node<T>, len| left.len == len && left.start.is_multiple_of(2 * len);
        while let Some(left) = self.0.pop_if(|left| is_left(left, node.len)) {
            node = left.with(node)?;
        }
        self.0.push(node);
        Ok(())
    }

    /// The nodes, which are those of [`nodes`].
    pub(super) fn into_nodes(self) -> Vec<Option<T>> {
        self.0.into_iter().map(|node| node.sum).collect()
    }

    /// The sum of all micro-batches.
    pub(super) fn sum(mut self) -> Result<Option<T>> {
        let Some(mut all) = self.0.pop() else { return Ok(None) };
        while let Some(left) = self.0.pop() {
            all = left.with(all)?;
        }
        Ok(all.sum)
    }
}

impl<T: Addend> Node<T> {
    /// The sum of this and the next one.
    fn with(self, right: Node<T>) -> Result<Node<T>> {
        let sum = match (self.sum, right.sum) {
            (Some(a), Some(b)) => Some(a.plus(b)?),
            (a, b) => a.or(b),
        };
        Ok(Node { start: self.start, len: self.len + right.len, sum })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Shows how it was added.
    impl Addend for String {
        fn plus(self, other: String) -> Result<String> {
            Ok(format!("({self} {other})"))
        }
    }

    fn leaf(i: usize) -> Option<String> {
        // Some have nothing to predict.
        (i % 5 != 3).then(|| i.to_string())
    }

    fn alone(count: usize) -> Option<String> {
        let mut tree = Tree::default();
        (0..count).for_each(|i| tree.push(i, leaf(i)).unwrap());
        tree.sum().unwrap()
    }

    #[test]
    fn the_order_is_that_of_the_tree() {
        assert_eq!(alone(0), None);
        assert_eq!(alone(1).unwrap(), "0");
        assert_eq!(alone(3).unwrap(), "((0 1) 2)");
        assert_eq!(alone(7).unwrap(), "(((0 1) 2) ((4 5) 6))");
        assert_eq!(alone(12).unwrap(), "((((0 1) 2) ((4 5) (6 7))) (9 (10 11)))");
    }

    #[test]
    fn however_many_processes_there_are_it_is_the_same() {
        for count in 1..=48 {
            for ranks in (1..=count).filter(|ranks| count % ranks == 0) {
                let (share, mut all) = (count / ranks, Tree::default());
                for rank in 0..ranks {
                    let (mut own, range) = (Tree::default(), rank * share..(rank + 1) * share);
                    range.clone().for_each(|i| own.push(i, leaf(i)).unwrap());
                    for (range, sum) in nodes(range).into_iter().zip(own.into_nodes()) {
                        all.push_node(range, sum).unwrap();
                    }
                }
                assert_eq!(all.sum().unwrap(), alone(count), "{count} on {ranks}");
            }
        }
    }

    #[test]
    fn a_power_of_two_per_process_is_one_node() {
        for (rank, share) in [(0, 1), (6, 1), (2, 2), (5, 4), (1, 8)] {
            assert_eq!(nodes(rank * share..(rank + 1) * share).len(), 1, "{share} of {rank}");
        }
        assert_eq!(nodes(3..6), [3..4, 4..6]);
    }
}
