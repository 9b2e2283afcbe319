//! Processes of a program that MPI has started: `mpirun`, `srun` and others.

use std::collections::VecDeque;
use std::time::Instant;

use mpi::Threading;
use mpi::collective::CommunicatorCollectives;
use mpi::datatype::PartitionMut;
use mpi::environment::{Universe, processor_name};
use mpi::ffi;
use mpi::topology::{Communicator, SimpleCommunicator};

use crate::ranks::gather;
use crate::{Error, Ranks, Result, Traffic};

/// MPI, from the start of a program to its end. If it is dropped before its [end](Session::end), as
/// by a panic, all processes are aborted: they would wait for this one.
pub struct Session(Option<Universe>);

impl Session {
    /// Start MPI, once in a program.
    pub fn start() -> Result<(Session, Mpi)> {
        let started = mpi::initialize_with_threading(Threading::Serialized);
        let (universe, threading) =
            started.ok_or_else(|| Error::invalid("mpi", "it was started before"))?;
        let session = Session(Some(universe));
        if threading < Threading::Serialized {
            let why = format!("it supports threads as {threading:?}, expected Serialized");
            return Err(Error::invalid("mpi", why));
        }
        Ok((session, Mpi::new()?))
    }

    /// Wait until all processes have ended their session.
    pub fn end(mut self) {
        drop(self.0.take());
    }

    /// End all processes, at once, with this exit code.
    pub fn abort(code: i32) -> ! {
        SimpleCommunicator::world().abort(code)
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if let Some(universe) = self.0.take() {
            // Its own end would wait for the other processes.
            std::mem::forget(universe);
            Session::abort(1);
        }
    }
}

/// All processes that MPI has started together.
pub struct Mpi {
    rank: usize,
    hosts: Vec<String>,
    local: Local,
    /// The oldest first.
    exchanges: VecDeque<Exchange>,
    traffic: Traffic,
}

/// A process among those of its machine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Local {
    /// Its number.
    pub rank: usize,
    /// How many there are.
    pub size: usize,
    /// Its share of the cores that it may use, which it may share with others: at least 1.
    pub threads: usize,
}

/// Messages on their way. The buffers stay where they are until the requests are complete.
struct Exchange {
    to: Vec<Vec<u8>>,
    from: Vec<Vec<u8>>,
    requests: Vec<ffi::MPI_Request>,
}

// SAFETY: MPI was started with `Threading::Serialized`, so that any thread may use its requests,
// one at a time, which `&mut self` ensures.
unsafe impl Send for Exchange {}

impl Mpi {
    fn new() -> Result<Mpi> {
        let world = SimpleCommunicator::world();
        let size = world.size() as usize;
        let mut mpi = Mpi {
            rank: world.rank() as usize,
            hosts: vec![String::new(); size],
            local: Local { rank: 0, size: 1, threads: 1 },
            exchanges: VecDeque::new(),
            traffic: Traffic::default(),
        };
        let host = processor_name().unwrap_or_else(|_| "an unknown host".into());
        let hosts = gather(&mut mpi, host.as_bytes())?;
        mpi.hosts = hosts.iter().map(|host| String::from_utf8_lossy(host).into_owned()).collect();
        mpi.local = Local::new(&world.split_shared(world.rank()));
        mpi.traffic = Traffic::default();
        Ok(mpi)
    }

    /// This process among those of its machine.
    pub fn local(&self) -> Local {
        self.local
    }
}

impl Local {
    fn new(node: &SimpleCommunicator) -> Local {
        let own = allowed_cores();
        let mut all = vec![0u8; own.len() * node.size() as usize];
        node.all_gather_into(&own[..], &mut all[..]);
        let users = |core: usize| all.chunks(own.len()).filter(|cores| cores[core] != 0).count();
        let cores: Vec<usize> = (0..own.len()).filter(|core| own[*core] != 0).collect();
        let share: f64 = cores.iter().map(|core| 1.0 / users(*core) as f64).sum();
        // Fewer than there are, in a container with a quota.
        let usable = std::thread::available_parallelism().map_or(1, usize::from);
        let share = match cores.len() {
            0 => usable as f64 / f64::from(node.size()),
            all => usable as f64 * share / all as f64,
        };
        let (rank, size) = (node.rank() as usize, node.size() as usize);
        Local { rank, size, threads: (share + 1e-6).max(1.0) as usize }
    }
}

/// The cores that this process may use, each 1; all 0 where the system does not say so.
fn allowed_cores() -> Vec<u8> {
    let mut cores = vec![0; 4096];
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    for range in list.unwrap_or_default().trim().split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        if let (Ok(first), Ok(last)) = (first.parse::<usize>(), last.parse::<usize>()) {
            let last = last.min(cores.len() - 1);
            (first..=last).for_each(|core| cores[core] = 1);
        }
    }
    cores
}

impl Ranks for Mpi {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.hosts.len()
    }

    fn describe(&self, rank: usize) -> String {
        format!("rank {rank} on {}", self.hosts[rank])
    }

    fn all_gather(&mut self, own: &[u8], lens: &[usize]) -> Result<Vec<Vec<u8>>> {
        let began = Instant::now();
        let counts = lens.iter().map(|len| count(*len)).collect::<Result<Vec<i32>>>()?;
        let mut starts = vec![0];
        for len in lens {
            starts.push(count(starts[starts.len() - 1] as usize + len)?);
        }
        let mut all = vec![0; starts[lens.len()] as usize];
        let mut partition = PartitionMut::new(&mut all[..], counts, &starts[..lens.len()]);
        SimpleCommunicator::world().all_gather_varcount_into(own, &mut partition);
        self.traffic.sent += (own.len() * (self.size() - 1)) as u64;
        self.traffic.waited += began.elapsed();
        let mut left = &all[..];
        let cut = |len: &usize| left.split_off(..*len).expect("as long as all").to_vec();
        Ok(lens.iter().map(cut).collect())
    }

    fn begin_exchange(&mut self, mut to: Vec<Vec<u8>>, from: &[usize]) -> Result<()> {
        let began = Instant::now();
        let mut received: Vec<Vec<u8>> = from.iter().map(|len| vec![0; *len]).collect();
        received[self.rank] = std::mem::take(&mut to[self.rank]);
        let mut exchange = Exchange { to, from: received, requests: Vec::new() };
        for rank in (0..self.size()).filter(|rank| *rank != self.rank) {
            exchange.receive(rank)?;
            exchange.send(rank)?;
        }
        self.traffic.sent += exchange.to.iter().map(|bytes| bytes.len() as u64).sum::<u64>();
        self.exchanges.push_back(exchange);
        // Most libraries send and receive only while they are called.
        self.exchanges.iter_mut().for_each(Exchange::test);
        self.traffic.waited += began.elapsed();
        Ok(())
    }

    fn end_exchange(&mut self) -> Result<Vec<Vec<u8>>> {
        let began = Instant::now();
        let none = || Error::invalid("mpi", "the end of an exchange that has not begun");
        let mut exchange = self.exchanges.pop_front().ok_or_else(none)?;
        exchange.wait();
        self.traffic.waited += began.elapsed();
        Ok(exchange.from)
    }

    fn traffic(&self) -> Traffic {
        self.traffic
    }
}

/// Of what is not complete, the buffers are never freed: MPI may still use them.
impl Drop for Mpi {
    fn drop(&mut self) {
        self.exchanges.drain(..).for_each(std::mem::forget);
    }
}

/// Messages between two processes arrive in the order in which they are sent.
const TAG: i32 = 0;

impl Exchange {
    fn receive(&mut self, rank: usize) -> Result<()> {
        let (buffer, mut request) = (&mut self.from[rank], no_request());
        let count = count(buffer.len())?;
        if count == 0 {
            return Ok(());
        }
        // SAFETY: the buffer has `count` bytes, and neither moves nor is freed before the request
        // is complete: `Exchange` is dropped after `wait`, or never.
        unsafe {
            let (bytes, world) = (ffi::RSMPI_UINT8_T, ffi::RSMPI_COMM_WORLD);
            let buffer = buffer.as_mut_ptr().cast();
            ffi::MPI_Irecv(buffer, count, bytes, rank as i32, TAG, world, &mut request);
        }
        self.requests.push(request);
        Ok(())
    }

    fn send(&mut self, rank: usize) -> Result<()> {
        let (buffer, mut request) = (&self.to[rank], no_request());
        let count = count(buffer.len())?;
        if count == 0 {
            return Ok(());
        }
        // SAFETY: as in `receive`.
        unsafe {
            let (bytes, world) = (ffi::RSMPI_UINT8_T, ffi::RSMPI_COMM_WORLD);
            let buffer = buffer.as_ptr().cast();
            ffi::MPI_Isend(buffer, count, bytes, rank as i32, TAG, world, &mut request);
        }
        self.requests.push(request);
        Ok(())
    }

    /// Let the messages make progress.
    fn test(&mut self) {
        let (mut done, count) = (0, self.requests.len() as i32);
        // SAFETY: there are so many requests; those that are complete become null.
        unsafe {
            let ignore = ffi::RSMPI_STATUSES_IGNORE;
            ffi::MPI_Testall(count, self.requests.as_mut_ptr(), &mut done, ignore);
        }
    }

    /// Wait until all messages are complete.
    fn wait(&mut self) {
        // SAFETY: there are so many requests, of which some may be null.
        unsafe {
            let (count, ignore) = (self.requests.len() as i32, ffi::RSMPI_STATUSES_IGNORE);
            ffi::MPI_Waitall(count, self.requests.as_mut_ptr(), ignore);
        }
    }
}

fn no_request() -> ffi::MPI_Request {
    // SAFETY: a constant of the library.
    unsafe { ffi::RSMPI_REQUEST_NULL }
}

/// MPI counts in 32 bits.
fn count(len: usize) -> Result<i32> {
    let why =
        || Error::invalid("mpi", format!("a message of {len} bytes, expected less than 2^31"));
    i32::try_from(len).map_err(|_| why())
}
