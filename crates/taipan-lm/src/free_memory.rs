//! The free memory of the machine and of the container that a program runs in.

use std::fs;
use std::path::Path;

use crate::mounts::Mount;

/// The bytes that this program can still allocate, if the system reports it: on Linux. What limits
/// a control group (version 1 or 2), as that of a container or a batch job, counts.
pub fn free_memory() -> Option<u64> {
    free_below(Path::new("/"))
}

/// With the system's files below another directory than `/`.
fn free_below(root: &Path) -> Option<u64> {
    let meminfo = fs::read_to_string(root.join("proc/meminfo")).ok()?;
    let machine = field(&meminfo, "MemAvailable:")?.checked_mul(1024)?;
    Some(free_of_groups(root).into_iter().fold(machine, u64::min))
}

/// The number behind a name at the beginning of a line.
fn field(text: &str, name: &str) -> Option<u64> {
    let mut lines = text.lines().map(str::split_whitespace);
    lines.find_map(|mut words| (words.next()? == name).then(|| words.next()?.parse().ok())?)
}

/// A version of control groups, with its names.
struct Version {
    /// The kind of its file systems.
    kind: &'static str,
    /// What limits memory, where that is an option of a mount.
    controller: &'static str,
    limits: &'static [&'static str],
    usage: &'static str,
    files: [&'static str; 2],
}

const VERSIONS: [Version; 2] = [
    Version {
        kind: "cgroup",
        controller: "memory",
        limits: &["memory.limit_in_bytes"],
        usage: "memory.usage_in_bytes",
        files: ["total_inactive_file", "total_active_file"],
    },
    Version {
        kind: "cgroup2",
        controller: "",
        limits: &["memory.max", "memory.high"],
        usage: "memory.current",
        files: ["inactive_file", "active_file"],
    },
];

impl Version {
    /// What the limit of a group leaves: pages of files that were read or written are given up
    /// before a program is killed.
    fn free(&self, group: &Path) -> Option<u64> {
        let read = |file: &str| fs::read_to_string(group.join(file)).ok();
        let number = |file: &str| read(file)?.trim().parse::<u64>().ok();
        // Where there is no limit, version 2 says `max`.
        let limit = self.limits.iter().filter_map(|file| number(file)).min()?;
        let stat = read("memory.stat").unwrap_or_default();
        let files: u64 = self.files.iter().filter_map(|name| field(&stat, name)).sum();
        Some(limit.saturating_sub(number(self.usage)?.saturating_sub(files)))
    }

    /// Of a line of `/proc/self/cgroup`, if it is of this version: the group. `4:memory:/group`,
    /// `0::/group`.
    fn group<'a>(&self, line: &'a str) -> Option<&'a str> {
        let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
        controllers.split(',').any(|found| found == self.controller).then_some(path)
    }
}

/// What the limits of the groups of this process, and of those that they are in, leave.
fn free_of_groups(root: &Path) -> Vec<u64> {
    let read = |name: &str| fs::read_to_string(root.join("proc/self").join(name));
    let (Ok(membership), Ok(mounts)) = (read("cgroup"), read("mountinfo")) else {
        return Vec::new();
    };
    let mut free = Vec::new();
    for mount in mounts.lines().filter_map(Mount::parse) {
        let limits_memory = |version: &&Version| {
            let controller = version.controller;
            mount.kind == version.kind && (controller.is_empty() || mount.has(controller))
        };
        let Some(version) = VERSIONS.iter().find(limits_memory) else { continue };
        let Some(group) = membership.lines().find_map(|line| version.group(line)) else { continue };
        // In a container, a group may be mounted at the root of what is seen there.
        let inside = Path::new(group).strip_prefix(mount.root).unwrap_or(Path::new(""));
        let point = root.join(mount.point.strip_prefix("/").unwrap_or(&mount.point));
        free.extend(inside.ancestors().filter_map(|group| version.free(&point.join(group))));
    }
    free
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const MOUNTS: &str = "29 22 0:25 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw\n";

    fn sized(mib: u64) -> String {
        (mib * MIB).to_string()
    }

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
        let stat = format!("anon 1\ninactive_file {}\nactive_file {}\n", 70 * MIB, 30 * MIB);
        let (current, limit) = (sized(300), sized(400));
        let of = |limits: &[(&str, &str)]| {
            let files = [
                ("proc/self/cgroup", "0::/\n"),
                ("proc/self/mountinfo", MOUNTS),
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
        let found = free(&[
            ("proc/self/cgroup", "0::/batch/job\n"),
            ("proc/self/mountinfo", MOUNTS),
            ("sys/fs/cgroup/batch/job/memory.max", &sized(800)),
            ("sys/fs/cgroup/batch/job/memory.current", &sized(100)),
            ("sys/fs/cgroup/batch/memory.max", &sized(1000)),
            ("sys/fs/cgroup/batch/memory.current", &sized(500)),
        ]);
        assert_eq!(found, Some(500 * MIB));
    }

    #[test]
    fn version_1_has_names_of_its_own() {
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
