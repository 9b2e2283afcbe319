//! The processes that mpirun, srun or another launcher of MPI has started.

use std::env;

use taipan_lm::Ranks;

use crate::Failure;

/// What a process has to know of the others.
pub struct Job {
    /// Those of MPI; none if this process is alone.
    pub ranks: Option<Box<dyn Ranks>>,
    /// The number of this process on its machine, of how many.
    pub local_rank: usize,
    pub local_size: usize,
    /// Its share of the machine's cores, if there are other processes.
    pub threads: Option<usize>,
}

impl Job {
    /// How many processes there are.
    pub fn size(&self) -> usize {
        self.ranks.as_ref().map_or(1, |ranks| ranks.size())
    }

    pub fn place(&self) -> Place {
        Place { ranks: self.size(), on_machine: self.local_size }
    }

    /// One process.
    fn alone() -> Job {
        Job { ranks: None, local_rank: 0, local_size: 1, threads: None }
    }
}

/// How many processes train one model.
#[derive(Clone, Copy)]
pub struct Place {
    pub ranks: usize,
    /// Those that share the memory of this one's machine.
    pub on_machine: usize,
}

impl Place {
    pub const ALONE: Place = Place { ranks: 1, on_machine: 1 };
}

/// What a launcher has put into the environment of a process.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Launched {
    launcher: &'static str,
    rank: usize,
    /// Processes, if it says so.
    size: Option<usize>,
}

impl Launched {
    /// The variables that launchers set, the most specific first: mpirun sets its own where Slurm's
    /// are those of its daemons. `SLURM_NTASKS` is none of them: a batch script has it, too, of
    /// which there is one process.
    fn find(variable: impl Fn(&str) -> Option<String>) -> Option<Launched> {
        const VARIABLES: [(&str, &str, &str); 4] = [
            ("mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
            ("mpiexec", "PMI_RANK", "PMI_SIZE"),
            ("srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
            ("PMIx", "PMIX_RANK", "PMIX_SIZE"),
        ];
        let number = |name: &str| variable(name)?.parse().ok();
        VARIABLES.into_iter().find_map(|(launcher, rank, size)| {
            let (rank, size) = (number(rank)?, number(size));
            // Outside of a step, Slurm's processes have a number, but no size.
            let is_one = size.is_some() || launcher == "PMIx";
            is_one.then_some(Launched { launcher, rank, size })
        })
    }

    #[cfg(any(test, not(feature = "mpi")))]
    fn is_alone(self) -> bool {
        self.rank == 0 && self.size.is_none_or(|size| size == 1)
    }
}

/// Run `f` in this process, with the others if a launcher has started several. If it fails in one of
/// them, all are ended, with one message.
#[cfg(feature = "mpi")]
pub fn run<R>(f: impl FnOnce(Job) -> Result<R, Failure>) -> Result<R, Failure> {
    use taipan_lm::mpi::Session;

    let Some(launched) = Launched::find(|name| env::var(name).ok()) else {
        return f(Job::alone());
    };
    let (session, mpi) = Session::start()?;
    let (rank, name) = (mpi.rank(), mpi.describe(mpi.rank()));
    let (local, size) = (mpi.local(), mpi.size());
    let job = Job {
        ranks: Some(Box::new(mpi)),
        local_rank: local.rank,
        local_size: local.size,
        threads: Some(local.threads).filter(|_| size > 1),
    };
    let done = match launched.size.filter(|expected| *expected != size) {
        None => f(job),
        Some(expected) => {
            let Launched { launcher, .. } = launched;
            Err(format!(
                "{launcher} has started {expected} processes, but MPI knows of {size}: it is not \
                 the launcher of the MPI library that taipan was built with (for Slurm, see srun \
                 --mpi=list)"
            )
            .into())
        }
    };
    match done {
        Ok(result) => {
            session.end();
            Ok(result)
        }
        Err(error) => {
            if rank > 0 {
                // What all processes find, the first one says, and ends them; on a busy machine, or
                // on another node, it may take a while until that arrives.
                std::thread::sleep(std::time::Duration::from_secs(3));
            }
            crate::message::error(format!("{name}: {error}"));
            // MPICH's launcher drops what it has not passed on when the job is aborted.
            std::thread::sleep(std::time::Duration::from_millis(300));
            Session::abort(crate::exit_code(&error))
        }
    }
}

/// Run `f`, unless a launcher has started several processes, which would do the same.
#[cfg(not(feature = "mpi"))]
pub fn run<R>(f: impl FnOnce(Job) -> Result<R, Failure>) -> Result<R, Failure> {
    match Launched::find(|name| env::var(name).ok()).filter(|launched| !launched.is_alone()) {
        None => f(Job::alone()),
        Some(Launched { launcher, rank, size }) => {
            if rank > 0 {
                // The first one says why, before the launcher ends it because of this one.
                std::thread::sleep(std::time::Duration::from_secs(1));
                std::process::exit(2);
            }
            let size = size.map_or("several".into(), |size| size.to_string());
            crate::usage(format!(
                "{launcher} has started {size} processes, but this program was built without MPI: \
                 each of them would do the same; build it with --features mpi"
            ))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(variables: &[(&str, &str)]) -> Option<Launched> {
        Launched::find(|name| {
            let found = variables.iter().find(|(other, _)| *other == name);
            found.map(|(_, value)| value.to_string())
        })
    }

    #[test]
    fn launchers_are_known_by_their_variables() {
        assert_eq!(find(&[]), None);
        let open_mpi = [("OMPI_COMM_WORLD_SIZE", "4"), ("OMPI_COMM_WORLD_RANK", "2")];
        let expected = Launched { launcher: "mpirun", rank: 2, size: Some(4) };
        assert_eq!(find(&open_mpi), Some(expected));
        // mpirun in a Slurm job starts a daemon on each node by srun.
        let daemons = [("SLURM_PROCID", "1"), ("SLURM_STEP_NUM_TASKS", "2")];
        assert_eq!(find(&[&daemons[..], &open_mpi[..]].concat()), Some(expected));
        let expected = Launched { launcher: "srun", rank: 1, size: Some(2) };
        assert_eq!(find(&daemons), Some(expected));
        let hydra = [("PMI_RANK", "0"), ("PMI_SIZE", "3")];
        assert!(!find(&hydra).unwrap().is_alone());
        assert!(!find(&[("PMIX_RANK", "1")]).unwrap().is_alone());
    }

    #[test]
    fn a_batch_script_and_a_single_process_are_alone() {
        assert_eq!(find(&[("SLURM_NTASKS", "8"), ("SLURM_PROCID", "0")]), None);
        let one = [("OMPI_COMM_WORLD_SIZE", "1"), ("OMPI_COMM_WORLD_RANK", "0")];
        assert!(find(&one).unwrap().is_alone());
        assert!(find(&[("PMIX_RANK", "0")]).unwrap().is_alone());
    }
}
