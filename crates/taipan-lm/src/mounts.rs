//! The file systems that are mounted, where the system lists them: on Linux.

use std::fs;
use std::path::{Path, PathBuf};

/// A line of `mountinfo`: `36 35 0:32 /root /point rw shared:1 - nfs4 server:/export rw,hard`.
pub(crate) struct Mount<'a> {
    /// The directory of the file system that is mounted.
    pub(crate) root: &'a str,
    /// Where it is mounted.
    pub(crate) point: PathBuf,
    pub(crate) kind: &'a str,
    options: &'a str,
}

impl Mount<'_> {
    pub(crate) fn parse(line: &str) -> Option<Mount<'_>> {
        let (before, behind) = line.split_once(" - ")?;
        let (mut before, mut behind) = (before.split(' ').skip(3), behind.split(' '));
        Some(Mount {
            root: before.next()?,
            // A space in a path is written as its octal number.
            point: PathBuf::from(before.next()?.replace("\\040", " ")),
            kind: behind.next()?,
            options: behind.nth(1)?,
        })
    }

    pub(crate) fn has(&self, option: &str) -> bool {
        self.options.split(',').any(|found| found == option)
    }
}

/// The kind of the file system that an absolute path is on, if its locks hold on this machine alone
/// though others can write to it.
pub fn local_locks(path: &Path) -> Option<String> {
    find_local_locks(&fs::read_to_string("/proc/self/mountinfo").ok()?, path)
}

fn find_local_locks(mounts: &str, path: &Path) -> Option<String> {
    let around = mounts.lines().filter_map(Mount::parse);
    let around = around.filter(|mount| path.starts_with(&mount.point));
    // Of two at one mount point the later one is seen.
    let mount = around.max_by_key(|mount| mount.point.components().count())?;
    let has = |options: &[&str]| options.iter().any(|option| mount.has(option));
    let local = match mount.kind {
        "nfs" | "nfs4" => has(&["nolock", "local_lock=flock", "local_lock=all"]),
        "cifs" | "smb3" => has(&["nobrl"]),
        "9p" | "fuse.sshfs" | "vboxsf" => true,
        _ => false,
    };
    local.then(|| mount.kind.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn local_locks_of_network_file_systems_are_known() {
        let mounts = "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n\
            36 22 0:32 / /shared rw shared:1 - nfs4 server:/export rw,vers=4.2,local_lock=none\n\
            37 22 0:33 / /old rw - nfs server:/old rw,vers=3,nolock,local_lock=all\n\
            38 37 0:34 / /old/inner rw - ext4 /dev/sdb1 rw\n\
            39 22 0:35 / /a\\040b rw - fuse.sshfs host: rw\n";
        let kind = |path: &str| find_local_locks(mounts, Path::new(path));
        assert_eq!(kind("/home/run"), None);
        assert_eq!(kind("/shared/run"), None);
        assert_eq!(kind("/old/run").as_deref(), Some("nfs"));
        assert_eq!(kind("/older/run"), None);
        assert_eq!(kind("/old/inner/run"), None);
        assert_eq!(kind("/a b/run").as_deref(), Some("fuse.sshfs"));
    }
}
