//! Training a byte-level BPE (Sennrich et al. 2016; over bytes, Radford et al. 2019).
//!
//! The library `tokenizers` has a trainer too, but breaks some ties by the order of hash maps with
//! a random key and counts in 32 bits.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, HashMap};

use super::byte_level::{self, Bpe};
use super::words;
use crate::data::Sources;
use crate::error::ensure;
use crate::{Error, Result};

const SPECIAL: &[&str] = &["<|endoftext|>"];

type Pair = (u32, u32);

/// A distinct word of the text: its tokens, and how often it occurs.
struct Word {
    tokens: Vec<u32>,
    count: u64,
}

pub(super) fn train(sources: &Sources, vocab_size: usize) -> Result<Bpe> {
    let mut tokens: Vec<String> = SPECIAL.iter().map(|token| token.to_string()).collect();
    tokens.extend(byte_level::alphabet().map(String::from));
    let (subject, least) = ("tokenizer of the given size", tokens.len() + 1);
    ensure!(vocab_size >= least, subject, "{vocab_size} tokens, expected {least} or more");
    let mut words = distinct_words(sources)?;
    let mut pairs = Pairs::default();
    for (index, word) in words.iter().enumerate() {
        pairs.add(index, word);
    }
    pairs.queue_changed();
    let mut merges = Vec::new();
    while tokens.len() < vocab_size {
        let Some(pair) = pairs.most_frequent() else {
            let found = tokens.len();
            let why = format!("the text gives {found} tokens, expected {vocab_size}");
            return Err(Error::invalid(subject, why));
        };
        // A token that is not there yet: what is joined inside a string does not depend on what is
        // around it, so no two pairs make the same.
        let new = tokens.len() as u32;
        let merge_rule = [pair.0, pair.1].map(|id| tokens[id as usize].clone());
        tokens.push(merge_rule.concat());
        merges.push(merge_rule);
        for index in pairs.occurrences[&pair].words.clone() {
            pairs.remove(index, &words[index]);
            merge(&mut words[index].tokens, pair, new);
            pairs.add(index, &words[index]);
        }
        pairs.queue_changed();
    }
    Ok(Bpe { tokens, merges, special: SPECIAL })
}

/// The distinct words of the text, in any order: only sums over them count.
fn distinct_words(sources: &Sources) -> Result<Vec<Word>> {
    let mut counts: HashMap<String, u64> = HashMap::new();
    for section in sources.documents() {
        for chunk in sources.chunks(&section)? {
            for word in words::words(&chunk?) {
                match counts.get_mut(word) {
                    Some(count) => *count += 1,
                    None => _ = counts.insert(word.to_owned(), 1),
                }
            }
        }
    }
    let id = |byte: u8| SPECIAL.len() as u32 + u32::from(byte);
    let word =
        |(word, count): (String, u64)| Word { tokens: word.bytes().map(id).collect(), count };
    Ok(counts.into_iter().map(word).collect())
}

/// Every pair of neighbours: how often it occurs, and in which words.
#[derive(Default)]
struct Pairs {
    occurrences: HashMap<Pair, Occurrences>,
    /// The most frequent first, of equal ones that with the smallest ids. A pair whose count went
    /// down has an entry with its old count, until it comes to the top.
    queue: BinaryHeap<(u64, Reverse<Pair>)>,
    changed: BTreeSet<Pair>,
}

#[derive(Default)]
struct Occurrences {
    count: u64,
    words: BTreeSet<usize>,
}

impl Pairs {
    fn add(&mut self, index: usize, word: &Word) {
        for pair in neighbours(&word.tokens) {
            let occurrences = self.occurrences.entry(pair).or_default();
            occurrences.count += word.count;
            occurrences.words.insert(index);
            self.changed.insert(pair);
        }
    }

    fn remove(&mut self, index: usize, word: &Word) {
        for pair in neighbours(&word.tokens) {
            if let Some(occurrences) = self.occurrences.get_mut(&pair) {
                occurrences.count -= word.count;
                occurrences.words.remove(&index);
            }
        }
    }

    fn queue_changed(&mut self) {
        for pair in std::mem::take(&mut self.changed) {
            self.queue.push((self.occurrences[&pair].count, Reverse(pair)));
        }
    }

    /// One that occurs at least twice, or nothing is gained. Counts never rise again: new pairs
    /// have a new token.
    fn most_frequent(&mut self) -> Option<Pair> {
        loop {
            let (queued, Reverse(pair)) = self.queue.pop()?;
            let count = self.occurrences.get(&pair).map_or(0, |occurrences| occurrences.count);
            match count {
                0 | 1 => _ = self.occurrences.remove(&pair),
                _ if count == queued => return Some(pair),
                _ => self.queue.push((count, Reverse(pair))),
            }
        }
    }
}

fn neighbours(tokens: &[u32]) -> impl Iterator<Item = Pair> {
    tokens.windows(2).map(|pair| (pair[0], pair[1]))
}

/// Replace the pair by `new`, from left to right.
fn merge(tokens: &mut Vec<u32>, pair: Pair, new: u32) {
    let (mut read, mut write) = (0, 0);
    while read < tokens.len() {
        let found = tokens[read..].starts_with(&[pair.0, pair.1]);
        tokens[write] = if found { new } else { tokens[read] };
        read += if found { 2 } else { 1 };
        write += 1;
    }
    tokens.truncate(write);
}
