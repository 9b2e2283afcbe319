//! Training a byte-level BPE (Sennrich et al. 2016; over bytes, Radford et al. 2019).
//!
//! The library `tokenizers` has a trainer too, but breaks some ties by the order of hash maps with
//! a random key and counts in 32 bits. Here words are counted, and then merged, in as many shares
//! as there are threads: only sums over all of them matter, so that their number does not.

use std::cmp::Reverse;
use std::collections::hash_map::Entry;
use std::collections::{BinaryHeap, HashMap};

#[cfg(not(target_family = "wasm"))]
use rayon::prelude::*;

use super::byte_level::{self, Bpe};
use super::pair_map::{Pair, PairMap};
use super::words;
use crate::data::{Sources, Stage};
use crate::error::ensure;
use crate::{Error, Result};

const SPECIAL: &[&str] = &["<|endoftext|>"];

/// Bytes of text whose words are counted at a time, by all threads; affects memory, not results.
const BATCH: usize = 4 << 20;

type Counts = HashMap<String, u64>;

pub(super) fn train(sources: &Sources, vocab_size: usize) -> Result<Bpe> {
    let mut tokens: Vec<String> = SPECIAL.iter().map(|token| token.to_string()).collect();
    tokens.extend(byte_level::alphabet().map(String::from));
    let (subject, least) = ("tokenizer of the given size", tokens.len() + 1);
    ensure!(vocab_size >= least, subject, "{vocab_size} tokens, expected {least} or more");
    let words = count_words(sources)?;
    #[cfg(not(target_family = "wasm"))]
    let threads = rayon::current_num_threads();
    #[cfg(target_family = "wasm")]
    let threads = 1;
    let mut shares = Share::split(words, threads);
    let mut queue = Queue::default();
    queue.update(of_each(&mut shares, Share::index));
    let mut merges = Vec::new();
    while tokens.len() < vocab_size {
        let Some(pair) = queue.most_frequent() else {
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
        queue.update(of_each(&mut shares, |share| share.merge(pair, new)));
        sources.report(Stage::Merging, tokens.len() as u64, vocab_size as u64);
    }
    Ok(Bpe { tokens, merges, special: SPECIAL })
}

/// The results of `f` for each share, which has a thread of its own. A browser has one thread.
fn of_each<R: Send>(shares: &mut [Share], f: impl Fn(&mut Share) -> R + Send + Sync) -> Vec<R> {
    #[cfg(not(target_family = "wasm"))]
    return shares.par_iter_mut().map(f).collect();
    #[cfg(target_family = "wasm")]
    shares.iter_mut().map(f).collect()
}

/// How often each distinct word of the text occurs.
fn count_words(sources: &Sources) -> Result<Counts> {
    let total = sources.total_bytes()?;
    let (mut counts, mut chunks) = (Counts::new(), Vec::new());
    let (mut bytes, mut done) = (0, 0);
    let mut add = |chunks: &mut Vec<String>| {
        #[cfg(not(target_family = "wasm"))]
        let found = chunks.par_drain(..).fold(Counts::new, count_chunk).reduce(Counts::new, sum);
        #[cfg(target_family = "wasm")]
        let found = chunks.drain(..).fold(Counts::new(), count_chunk);
        counts = sum(std::mem::take(&mut counts), found);
    };
    for section in sources.documents() {
        for chunk in sources.chunks(&section)? {
            let chunk = chunk?;
            bytes += chunk.len();
            chunks.push(chunk);
            if bytes >= BATCH {
                done += std::mem::take(&mut bytes) as u64;
                add(&mut chunks);
                sources.report(Stage::CountingWords, done, total);
            }
        }
    }
    add(&mut chunks);
    sources.report(Stage::CountingWords, total, total);
    Ok(counts)
}

fn count_chunk(mut counts: Counts, chunk: String) -> Counts {
    for word in words::words(&chunk) {
        match counts.get_mut(word) {
            Some(count) => *count += 1,
            None => _ = counts.insert(word.to_owned(), 1),
        }
    }
    counts
}

fn sum(one: Counts, other: Counts) -> Counts {
    let (mut large, small) = if one.len() < other.len() { (other, one) } else { (one, other) };
    for (word, count) in small {
        *large.entry(word).or_default() += count;
    }
    large
}

/// A distinct word of the text: its tokens, and how often it occurs.
struct Word {
    tokens: Vec<u32>,
    count: i64,
}

/// A share of the words, of which a thread has one.
#[derive(Default)]
struct Share {
    words: Vec<Word>,
    /// Which words contain a pair; some no longer do, some are listed twice.
    containing: PairMap<Vec<u32>>,
}

/// By how much the counts of pairs change.
type Changes = PairMap<i64>;

impl Share {
    fn split(words: Counts, count: usize) -> Vec<Share> {
        let mut shares: Vec<Share> = (0..count.max(1)).map(|_| Share::default()).collect();
        let id = |byte: u8| SPECIAL.len() as u32 + u32::from(byte);
        for (i, (word, count)) in words.into_iter().enumerate() {
            let word = Word { tokens: word.bytes().map(id).collect(), count: count as i64 };
            let share = i % shares.len();
            shares[share].words.push(word);
        }
        shares
    }

    /// Find the pairs of all words.
    fn index(&mut self) -> Changes {
        let mut changes = Changes::default();
        for (index, word) in self.words.iter().enumerate() {
            for pair in word.tokens.windows(2).map(|pair| (pair[0], pair[1])) {
                *changes.entry(pair).or_default() += word.count;
                self.containing.entry(pair).or_default().push(index as u32);
            }
        }
        changes
    }

    /// Replace the pair by `new` in every word, from left to right.
    fn merge(&mut self, pair: Pair, new: u32) -> Changes {
        let mut changes = Changes::default();
        for index in self.containing.remove(&pair).unwrap_or_default() {
            let Word { tokens, count } = &mut self.words[index as usize];
            let (mut read, mut write) = (0, 0);
            while read < tokens.len() {
                if !tokens[read..].starts_with(&[pair.0, pair.1]) {
                    tokens[write] = tokens[read];
                    (read, write) = (read + 1, write + 1);
                    continue;
                }
                // left, pair.0, pair.1, right becomes left, new, right.
                let left = write.checked_sub(1).map(|left| tokens[left]);
                let right = tokens.get(read + 2).copied();
                let mut change = |pair, by: i64| *changes.entry(pair).or_default() += by;
                let mut list = |pair| self.containing.entry(pair).or_default().push(index);
                change(pair, -*count);
                if let Some(left) = left {
                    change((left, pair.0), -*count);
                    change((left, new), *count);
                    list((left, new));
                }
                if let Some(right) = right {
                    change((pair.1, right), -*count);
                    change((new, right), *count);
                    list((new, right));
                }
                tokens[write] = new;
                (read, write) = (read + 2, write + 1);
            }
            tokens.truncate(write);
        }
        changes
    }
}

/// How often each pair of neighbours occurs.
#[derive(Default)]
struct Queue {
    counts: PairMap<i64>,
    /// The most frequent first, of equal ones that with the smallest ids. A pair whose count went
    /// down has an entry with its old count, until it comes to the top.
    queue: BinaryHeap<(i64, Reverse<Pair>)>,
}

impl Queue {
    /// Add the changes of all shares.
    fn update(&mut self, shares: Vec<Changes>) {
        let mut new = Vec::new();
        for (pair, by) in shares.into_iter().flatten() {
            match self.counts.entry(pair) {
                Entry::Occupied(mut count) => *count.get_mut() += by,
                Entry::Vacant(count) => {
                    count.insert(by);
                    new.push(pair);
                }
            }
        }
        self.queue.extend(new.into_iter().map(|pair| (self.counts[&pair], Reverse(pair))));
    }

    /// One that occurs at least twice, or nothing is gained. Counts never rise again: new pairs
    /// have a new token.
    fn most_frequent(&mut self) -> Option<Pair> {
        loop {
            let (queued, Reverse(pair)) = self.queue.pop()?;
            match self.counts[&pair] {
                ..=1 => _ = self.counts.remove(&pair),
                count if count == queued => return Some(pair),
                count => self.queue.push((count, Reverse(pair))),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// Counts all pairs anew for every merge.
    fn naive_merges(text: &str, count: usize) -> Vec<[Vec<u8>; 2]> {
        let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
        words::words(text).for_each(|word| *counts.entry(word).or_default() += 1);
        let mut tokens: Vec<Vec<u8>> = (0..=255).map(|byte| vec![byte]).collect();
        let ids = |word: &str| word.bytes().map(usize::from).collect::<Vec<_>>();
        let mut words: Vec<_> = counts.iter().map(|(word, count)| (ids(word), *count)).collect();
        let merge = |_| {
            let mut pairs: BTreeMap<[usize; 2], u64> = BTreeMap::new();
            for (word, count) in &words {
                for pair in word.windows(2) {
                    *pairs.entry([pair[0], pair[1]]).or_default() += count;
                }
            }
            let most = pairs.iter().max_by_key(|(pair, count)| (**count, Reverse(**pair)));
            let pair = *most.unwrap().0;
            for (word, _) in &mut words {
                let mut at = 0;
                while at + 1 < word.len() {
                    if word[at..at + 2] == pair {
                        word.splice(at..at + 2, [tokens.len()]);
                    }
                    at += 1;
                }
            }
            let rule = pair.map(|id| tokens[id].clone());
            tokens.push(rule.concat());
            rule
        };
        (0..count).map(merge).collect()
    }

    #[test]
    fn merges_are_those_of_a_naive_trainer_for_any_number_of_threads() {
        let mut state = 1_u64;
        let mut letter = || {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            ['a', 'a', 'b', 'ä', ' '][(state >> 40) as usize % 5]
        };
        let letters: String = (0..5000).map(|_| letter()).collect();
        let stories: String = crate::data::stories().take(40).collect();
        for text in [letters, stories, "aaaaaaa aaaaaa aaaaa".repeat(4)] {
            let count = if text.len() < 1000 { 5 } else { 150 };
            let alphabet = byte_level::alphabet();
            let shown =
                |token: &Vec<u8>| token.iter().map(|byte| alphabet[*byte as usize]).collect();
            let expected: Vec<[String; 2]> = naive_merges(&text, count)
                .iter()
                .map(|[left, right]| [shown(left), shown(right)])
                .collect();
            let sources = Sources::texts([("text", text)]);
            for threads in [1, 2, 3, 8] {
                let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
                let bpe = pool.install(|| train(&sources, 257 + count)).unwrap();
                assert_eq!(bpe.merges, expected, "{threads} threads");
            }
        }
    }
}
