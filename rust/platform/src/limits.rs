//! What the operating system limits: memory, disk space, file permissions, priority.

use std::fs::Metadata;
use std::path::{Path, PathBuf};

/// A limit of this many bytes or more means no limit.
const UNLIMITED: u64 = 1 << 60;

/// Memory that may still be used, and what sets the limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Available {
    /// Bytes.
    pub bytes: u64,
    /// What sets the limit, in the words of messages.
    pub limit: &'static str,
}

/// The least of: memory that the system can give without swapping, what the control groups (v1 and v2) leave, what the
/// limit on addresses (`ulimit -v`) leaves. None where the system says none of them.
///
/// Sources: proc(5), Linux Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/memory.rst.
pub fn available_memory() -> Option<Available> {
    available_in(Path::new("/"))
}

fn available_in(root: &Path) -> Option<Available> {
    let machine = free_memory(root).map(|bytes| Available { bytes, limit: "free on this machine" });
    let group = groups(root).into_iter().filter_map(|group| group.left()).min();
    let group =
        group.map(|bytes| Available { bytes, limit: "left by the memory limit of the control group" });
    let addresses = addresses_left(root)
        .map(|bytes| Available { bytes, limit: "left by the limit on addresses (ulimit -v)" });
    [machine, group, addresses].into_iter().flatten().min_by_key(|available| available.bytes)
}

/// `MemAvailable` of /proc/meminfo.
fn free_memory(root: &Path) -> Option<u64> {
    let text = std::fs::read_to_string(root.join("proc/meminfo")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? << 10)
}

/// A control group's folder and the names of its files.
struct Group {
    folder: PathBuf,
    limit: &'static str,
    usage: &'static str,
    /// Lines of memory.stat: pages of files, which the system can drop.
    reclaimable: [&'static str; 2],
}

impl Group {
    fn left(&self) -> Option<u64> {
        let number = |name: &str| -> Option<u64> {
            std::fs::read_to_string(self.folder.join(name)).ok()?.trim().parse().ok()
        };
        let limit = number(self.limit).filter(|&limit| limit < UNLIMITED)?;
        let stat = std::fs::read_to_string(self.folder.join("memory.stat")).unwrap_or_default();
        let files: u64 = stat
            .lines()
            .filter_map(|line| line.split_once(' '))
            .filter(|(name, _)| self.reclaimable.contains(name))
            .filter_map(|(_, value)| value.trim().parse::<u64>().ok())
            .sum();
        let used = number(self.usage).unwrap_or(0).saturating_sub(files);
        Some(limit.saturating_sub(used))
    }
}

/// The control groups of this process and their parents.
fn groups(root: &Path) -> Vec<Group> {
    let text = std::fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
    let mut all = Vec::new();
    for line in text.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else { continue };
        let (mount, limit, usage, reclaimable) = match controllers {
            "" => ("", "memory.max", "memory.current", ["inactive_file", "active_file"]),
            _ if controllers.split(',').any(|name| name == "memory") => (
                "memory",
                "memory.limit_in_bytes",
                "memory.usage_in_bytes",
                ["total_inactive_file", "total_active_file"],
            ),
            _ => continue,
        };
        let mount = root.join("sys/fs/cgroup").join(mount);
        let inner = mount.join(path.trim_start_matches('/'));
        let folders = inner.ancestors().take_while(|folder| folder.starts_with(&mount));
        all.extend(folders.map(|folder| Group { folder: folder.to_owned(), limit, usage, reclaimable }));
    }
    all
}

/// RLIMIT_AS minus what is in use.
fn addresses_left(root: &Path) -> Option<u64> {
    let limits = std::fs::read_to_string(root.join("proc/self/limits")).ok()?;
    let line = limits.lines().find_map(|line| line.strip_prefix("Max address space"))?;
    let limit: u64 = line.split_whitespace().next()?.parse().ok()?; // or "unlimited"
    let status = std::fs::read_to_string(root.join("proc/self/status")).ok()?;
    let used = status.lines().find_map(|line| line.strip_prefix("VmSize:"))?;
    let used = used.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? << 10;
    Some(limit.saturating_sub(used))
}

/// Free bytes of a file system for this user; None where the system does not say.
pub fn free_disk(folder: &Path) -> Option<u64> {
    #[cfg(unix)]
    {
        use std::os::unix::ffi::OsStrExt;
        let path = std::ffi::CString::new(folder.as_os_str().as_bytes()).ok()?;
        let mut stat = std::mem::MaybeUninit::<libc::statvfs>::zeroed();
        // SAFETY: the path ends with a NUL, and statvfs writes the struct that it is given; zeros are a valid one.
        let stat = unsafe {
            if libc::statvfs(path.as_ptr(), stat.as_mut_ptr()) != 0 {
                return None;
            }
            stat.assume_init()
        };
        #[allow(clippy::useless_conversion, clippy::unnecessary_cast)] // the fields' types differ by system
        Some((stat.f_bavail as u64).saturating_mul(stat.f_frsize as u64))
    }
    #[cfg(not(unix))]
    {
        let _ = folder;
        None
    }
}

/// Whether this user owns a file and no other user may write it.
pub fn owned_and_private(metadata: &Metadata) -> bool {
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt;
        // SAFETY: geteuid has no arguments and cannot fail.
        let own = unsafe { libc::geteuid() };
        metadata.uid() == own && metadata.mode() & 0o022 == 0
    }
    #[cfg(not(unix))]
    {
        let _ = metadata;
        true
    }
}

/// Gives the calling thread the lowest priority, where threads have their own priorities.
pub fn lower_priority() {
    // SAFETY: a plain system call; 0 is the calling thread.
    #[cfg(target_os = "linux")]
    unsafe {
        libc::setpriority(libc::PRIO_PROCESS, 0, 19);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A root folder with these files.
    fn system(name: &str, files: &[(&str, &str)]) -> PathBuf {
        let root = std::env::temp_dir().join(format!("ropechat-system-{}-{name}", std::process::id()));
        for (path, text) in files {
            let path = root.join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        root
    }

    fn left(name: &str, files: &[(&str, &str)]) -> Option<(u64, &'static str)> {
        let root = system(name, files);
        let available = available_in(&root).map(|a| (a.bytes, a.limit));
        let _ = std::fs::remove_dir_all(&root);
        available
    }

    const FREE: (&str, &str) =
        ("proc/meminfo", "MemTotal:  9000 kB\nMemFree: 1 kB\nMemAvailable:    4000 kB\n");

    #[test]
    fn the_machine_alone() {
        assert_eq!(left("machine", &[FREE]), Some((4000 << 10, "free on this machine")));
        assert_eq!(left("nothing", &[]), None);
    }

    #[test]
    fn the_least_of_a_group_and_those_around_it() {
        let v2 = |inner: &'static str| {
            [
                FREE,
                ("proc/self/cgroup", "0::/a/b\n"),
                ("sys/fs/cgroup/a/b/memory.max", inner),
                ("sys/fs/cgroup/a/b/memory.current", "500000\n"),
                (
                    "sys/fs/cgroup/a/b/memory.stat",
                    "anon 1\ninactive_file 100000\nactive_file 50000\nfile 999999\n",
                ),
                ("sys/fs/cgroup/a/memory.max", "2000000\n"),
                ("sys/fs/cgroup/a/memory.current", "700000\n"),
            ]
        };
        let limit = "left by the memory limit of the control group";
        assert_eq!(left("inner", &v2("1000000\n")), Some((650_000, limit)));
        assert_eq!(left("outer", &v2("max\n")), Some((1_300_000, limit)));
        assert_eq!(left("used up", &v2("300000\n")), Some((0, limit)));
    }

    #[test]
    fn version_1_groups() {
        let v1 = |limit: &'static str| {
            [
                FREE,
                ("proc/self/cgroup", "5:cpu,memory:/x\n4:devices:/y\n"),
                ("sys/fs/cgroup/memory/x/memory.limit_in_bytes", limit),
                ("sys/fs/cgroup/memory/x/memory.usage_in_bytes", "600000"),
                ("sys/fs/cgroup/memory/x/memory.stat", "inactive_file 7\ntotal_inactive_file 100000\n"),
            ]
        };
        assert_eq!(left("v1", &v1("1000000")).map(|a| a.0), Some(500_000));
        assert_eq!(left("v1 none", &v1("9223372036854771712")).map(|a| a.0), Some(4000 << 10));
    }

    #[test]
    fn addresses() {
        let files = |limit: &'static str| {
            [
                FREE,
                ("proc/self/limits", limit),
                ("proc/self/status", "Name: x\nVmPeak: 9 kB\nVmSize:     1000 kB\n"),
            ]
        };
        let line = "Limit  Soft Limit  Hard Limit  Units\nMax address space  3072000  unlimited  bytes\n";
        assert_eq!(left("as", &files(line)).map(|a| a.0), Some(3_072_000 - (1000 << 10)));
        let line = "Max address space         unlimited            unlimited            bytes\n";
        assert_eq!(left("no as", &files(line)).map(|a| a.0), Some(4000 << 10));
    }

    #[test]
    fn this_machine_answers() {
        if cfg!(target_os = "linux") {
            assert!(available_memory().is_some_and(|available| available.bytes > 1 << 20));
        }
        if cfg!(unix) {
            assert!(free_disk(&std::env::temp_dir()).is_some());
        }
        assert_eq!(free_disk(Path::new("/no/such/folder")), None);
    }
}
