//! Processes that train one model together.

use std::time::Duration;

use crate::error::ensure;
use crate::{Error, Result};

/// The processes of a run, with the numbers from 0 to `size − 1`, and how they exchange bytes.
///
/// Every process calls the same functions in the same order. An error means that the processes can
/// no longer work together: the program ends all of them. `Mpi` is an implementation.
pub trait Ranks: Send {
    /// The number of this process.
    fn rank(&self) -> usize;

    /// The number of processes.
    fn size(&self) -> usize;

    /// For messages: a process, and where it runs.
    fn describe(&self, rank: usize) -> String;

    /// The bytes of every process, given those of this one and the lengths of all.
    fn all_gather(&mut self, own: &[u8], lens: &[usize]) -> Result<Vec<Vec<u8>>>;

    /// Begin to send `to[r]` to each process `r`, and to receive `from[r]` bytes of it. What is
    /// computed until [`end_exchange`](Ranks::end_exchange) may overlap with it.
    fn begin_exchange(&mut self, to: Vec<Vec<u8>>, from: &[usize]) -> Result<()>;

    /// What each process sent to this one in the oldest exchange that has not ended.
    fn end_exchange(&mut self) -> Result<Vec<Vec<u8>>>;

    /// What this process has sent and waited so far.
    fn traffic(&self) -> Traffic;
}

/// What a process has sent to others, and how long it has waited for them.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Traffic {
    /// Bytes sent, to each process that receives them.
    pub sent: u64,
    /// The time in calls that exchange bytes.
    pub waited: Duration,
}

/// The bytes of every process, of which only their own lengths are known to them.
pub fn gather(ranks: &mut dyn Ranks, own: &[u8]) -> Result<Vec<Vec<u8>>> {
    let len = (own.len() as u64).to_le_bytes();
    let lens = ranks.all_gather(&len, &vec![len.len(); ranks.size()])?;
    let lens: Vec<usize> = lens.iter().map(|len| words(len)[0] as usize).collect();
    ranks.all_gather(own, &lens)
}

/// An error unless all processes have the same values of everything that determines a run, by name.
/// It says which process differs from the first one, and in what.
pub fn check_same(ranks: &mut dyn Ranks, own: &[(&str, String)]) -> Result<()> {
    let own = serde_json::to_vec(own).expect("texts");
    let all = gather(ranks, &own)?;
    let read = |bytes: &[u8]| serde_json::from_slice::<Vec<(String, String)>>(bytes).ok();
    let first = read(&all[0]);
    for (rank, found) in all.iter().enumerate().skip(1) {
        let (this, that) = (ranks.describe(rank), ranks.describe(0));
        let (Some(found), Some(first)) = (read(found), &first) else {
            return Err(Error::invalid(this, format!("it is of another version than {that}")));
        };
        if let Some(((name, found), (_, first))) = found.iter().zip(first).find(|(a, b)| a != b) {
            return Err(Error::invalid(this, format!("{name} is {found}, but {first} in {that}")));
        }
        let same = found.len() == first.len();
        ensure!(same, this, "it is of another version than {that}");
    }
    Ok(())
}

/// Numbers of 8 bytes.
pub(crate) fn words(bytes: &[u8]) -> Vec<u64> {
    let (words, _) = bytes.as_chunks();
    words.iter().map(|word| u64::from_le_bytes(*word)).collect()
}

/// The bytes of numbers.
pub(crate) fn bytes(words: impl IntoIterator<Item = u64>) -> Vec<u8> {
    words.into_iter().flat_map(u64::to_le_bytes).collect()
}
