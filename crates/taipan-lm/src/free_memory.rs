//! The free memory of the machine and of the container that a program runs in.

use std::fs;
use std::path::{Path, PathBuf};

/// The bytes that this program can still allocate, if the system reports it: on Linux. What limits
/// a control group (version 1 or 2), as that of a container or a batch job, counts.
pub fn free_memory() -> Option<u64> {
    free_below(Path::new("/"))
}

/// With the system's files below another directory than `/`.
fn free_below(root: &Path) -> Option<u64> {
    let meminfo = fs::read_to_string(root.join("proc/meminfo")).ok()?;
    let machine = field(&meminfo, "MemAvailable:")?.checked_mul(1024)?;
    Some(groups(root).into_iter().filter_map(|group| group.free()).fold(machine, u64::min))
}

/// The number behind a name at the beginning of a line.
fn field(text: &str, name: &str) -> Option<u64> {
    let mut lines = text.lines().map(str::split_whitespace);
    lines.find_map(|mut words| (words.next()? == name).then(|| words.next()?.parse().ok())?)
}

/// A control group that limits memory.
struct Group {
    version: Version,
    directory: PathBuf,
}

#[derive(Clone, Copy, PartialEq)]
enum Version {
    One,
    Two,
}

impl Group {
    /// What its limit leaves: pages of files that were read or written are given up before a
    /// program is killed.
    fn free(&self) -> Option<u64> {
        let (limits, usage, files) = match self.version {
            Version::One => (
                &["memory.limit_in_bytes"][..],
                "memory.usage_in_bytes",
                ["total_inactive_file", "total_active_file"],
            ),
            Version::Two => (
                &["memory.max", "memory.high"][..],
                "memory.current",
                ["inactive_file", "active_file"],
            ),
        };
        let number = |file: &str| self.read(file)?.trim().parse::<u64>().ok();
        // Where there is no limit, version 2 says `max`.
        let limit = limits.iter().filter_map(|file| number(file)).min()?;
        let stat = self.read("memory.stat").unwrap_or_default();
        let files: u64 = files.iter().filter_map(|name| field(&stat, name)).sum();
        Some(limit.saturating_sub(number(usage)?.saturating_sub(files)))
    }

    fn read(&self, file: &str) -> Option<String> {
        fs::read_to_string(self.directory.join(file)).ok()
    }
}

/// The groups of this process, each with those that it is in.
fn groups(root: &Path) -> Vec<Group> {
    let read = |name: &str| fs::read_to_string(root.join("proc/self").join(name));
    let (Ok(membership), Ok(mounts)) = (read("cgroup"), read("mountinfo")) else {
        return Vec::new();
    };
    let mut groups = Vec::new();
    for (version, mounted, point) in mounts.lines().filter_map(mount) {
        let path = membership.lines().find_map(|line| path_of(line, version));
        let Some(path) = path else { continue };
        // In a container, a group may be mounted at the root of what is seen there.
        let inside = Path::new(path).strip_prefix(mounted).unwrap_or(Path::new(""));
        for ancestor in inside.ancestors() {
            let relative = Path::new(point).strip_prefix("/").unwrap_or(Path::new(point));
            let directory = root.join(relative).join(ancestor);
            groups.push(Group { version, directory });
        }
    }
    groups
}

/// Of a line of `mountinfo`, if it is of groups that limit memory: which version, the group that is
/// mounted, and where: `30 23 0:26 /group /sys/fs/cgroup rw - cgroup2 cgroup2 rw`.
fn mount(line: &str) -> Option<(Version, &str, &str)> {
    let (before, behind) = line.split_once(" - ")?;
    let mut before = before.split(' ').skip(3);
    let (group, point) = (before.next()?, before.next()?);
    let mut behind = behind.split(' ');
    let (kind, options) = (behind.next()?, behind.nth(1)?);
    match kind {
        "cgroup2" => Some((Version::Two, group, point)),
        "cgroup" if options.split(',').any(|option| option == "memory") => {
            Some((Version::One, group, point))
        }
        _ => None,
    }
}

/// Of a line of `/proc/self/cgroup`, if it is of this version: the group. `4:memory:/group`,
/// `0::/group`.
fn path_of(line: &str, version: Version) -> Option<&str> {
    let mut parts = line.splitn(3, ':').skip(1);
    let (controllers, path) = (parts.next()?, parts.next()?);
    let memory = controllers.split(',').any(|controller| controller == "memory");
    let fits = match version {
        Version::One => memory,
        Version::Two => controllers.is_empty(),
    };
    fits.then_some(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// A machine with 9000 MiB available, and these files.
    fn free(files: &[(&str, &str)]) -> Option<u64> {
        let root = tempfile::tempdir().unwrap();
        let available =
            format!("MemTotal: 1 kB\nMemAvailable:    {} kB\nSwapFree: 1 kB\n", 9000 << 10);
        for (name, text) in [("proc/meminfo", &*available)].iter().chain(files) {
            let path = root.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        free_below(root.path())
    }

    #[test]
    fn without_a_group_it_is_what_linux_calls_available() {
        assert_eq!(free(&[]), Some(9000 * MIB));
        assert_eq!(field("MemTotal: 1 kB\n", "MemAvailable:"), None);
    }

    #[test]
    fn a_container_has_what_its_group_leaves() {
        let mounts = "29 22 0:25 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw\n";
        let current = (300 * MIB).to_string();
        let stat = format!("anon 1\ninactive_file {}\nactive_file {}\n", 70 * MIB, 30 * MIB);
        let limit = (400 * MIB).to_string();
        let of = |limits: &[(&str, &str)]| {
            let files = [
                ("proc/self/cgroup", "0::/\n"),
                ("proc/self/mountinfo", mounts),
                ("sys/fs/cgroup/memory.current", &current),
                ("sys/fs/cgroup/memory.stat", &stat),
            ];
            free(&[&files, limits].concat())
        };
        assert_eq!(of(&[("sys/fs/cgroup/memory.max", &limit)]), Some(200 * MIB));
        assert_eq!(of(&[("sys/fs/cgroup/memory.max", "max\n")]), Some(9000 * MIB));
        let both = [("sys/fs/cgroup/memory.max", "max"), ("sys/fs/cgroup/memory.high", &limit)];
        assert_eq!(of(&both), Some(200 * MIB));
        assert_eq!(of(&[("sys/fs/cgroup/memory.max", "1000")]), Some(0), "beyond the limit");
    }

    #[test]
    fn the_groups_around_a_group_count() {
        let sized = |mib: u64| (mib * MIB).to_string();
        let mounts = "29 22 0:25 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
        let found = free(&[
            ("proc/self/cgroup", "0::/batch/job\n"),
            ("proc/self/mountinfo", mounts),
            ("sys/fs/cgroup/batch/job/memory.max", &sized(800)),
            ("sys/fs/cgroup/batch/job/memory.current", &sized(100)),
            ("sys/fs/cgroup/batch/memory.max", &sized(1000)),
            ("sys/fs/cgroup/batch/memory.current", &sized(500)),
        ]);
        assert_eq!(found, Some(500 * MIB));
    }

    #[test]
    fn version_1_has_names_of_its_own() {
        let sized = |mib: u64| (mib * MIB).to_string();
        let stat = format!("inactive_file 7\ntotal_inactive_file {}\n", 50 * MIB);
        // The group is the root of what the container sees; `cpu` limits no memory.
        let mounts = "40 30 0:30 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n\
                      41 30 0:31 /docker/ab /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n";
        let found = free(&[
            ("proc/self/cgroup", "5:cpu,cpuacct:/docker/ab\n4:memory:/docker/ab\n0::/\n"),
            ("proc/self/mountinfo", mounts),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", &sized(400)),
            ("sys/fs/cgroup/memory/memory.usage_in_bytes", &sized(150)),
            ("sys/fs/cgroup/memory/memory.stat", &stat),
        ]);
        assert_eq!(found, Some(300 * MIB));
    }
}
