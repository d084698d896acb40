//! The processor cores that this process may use.

use std::collections::BTreeSet;
use std::path::Path;

/// The physical cores of the affinity, but no more than the quota of the control group allows: two hyperthreads of a core
/// share the units that compute a product, and its caches.
///
/// Where the system does not say which processors share a core, each counts as one.
pub fn physical_cores() -> usize {
    let usable = std::thread::available_parallelism().map_or(1, |n| n.get());
    cores_in(Path::new("/")).map_or(usable, |cores| cores.clamp(1, usable))
}

/// The cores of the processors that /proc/self/status allows; those of one core have the same list of siblings.
///
/// Sources: proc(5); Linux Documentation/admin-guide/cputopology.rst (`core_cpus_list`, before Linux 5.3
/// `thread_siblings_list`).
fn cores_in(root: &Path) -> Option<usize> {
    let status = std::fs::read_to_string(root.join("proc/self/status")).ok()?;
    let allowed = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
    let siblings = |cpu: usize| {
        let topology = root.join(format!("sys/devices/system/cpu/cpu{cpu}/topology"));
        let list = ["core_cpus_list", "thread_siblings_list"].map(|name| topology.join(name));
        list.into_iter().find_map(|path| std::fs::read_to_string(path).ok())
    };
    let cores: Option<BTreeSet<String>> = processors(allowed.trim())?.into_iter().map(siblings).collect();
    cores.map(|cores| cores.len())
}

/// A list as `0-3,8`.
fn processors(list: &str) -> Option<Vec<usize>> {
    /// More than any machine has: a longer list is no list.
    const MOST: usize = 1 << 16;
    let mut all = Vec::new();
    for range in list.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        if last >= MOST {
            return None;
        }
        all.extend(first..=last);
    }
    Some(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    /// A machine whose cores have these processors, and a process that may use some of them.
    fn machine(name: &str, cores: &[&str], file: &str, allowed: &str) -> PathBuf {
        let root = std::env::temp_dir().join(format!("ropechat-cores-{}-{name}", std::process::id()));
        for siblings in cores {
            for cpu in processors(siblings).unwrap() {
                let folder = root.join(format!("sys/devices/system/cpu/cpu{cpu}/topology"));
                std::fs::create_dir_all(&folder).unwrap();
                std::fs::write(folder.join(file), format!("{siblings}\n")).unwrap();
            }
        }
        std::fs::create_dir_all(root.join("proc/self")).unwrap();
        let status =
            format!("Name:\tx\nCpus_allowed:\tff\nCpus_allowed_list:\t{allowed}\nMems_allowed:\t1\n");
        std::fs::write(root.join("proc/self/status"), status).unwrap();
        root
    }

    #[test]
    fn hyperthreads_of_a_core_count_once() {
        // Four cores: two with two hyperthreads, two without, as in processors of two kinds of cores.
        let cores = ["0,4", "1,5", "2", "3"];
        for (name, file, allowed, expected) in [
            ("all", "core_cpus_list", "0-5", Some(4)),
            ("old", "thread_siblings_list", "0-5", Some(4)),
            ("pinned", "core_cpus_list", "0,4", Some(1)),
            ("some", "core_cpus_list", "1,3-4", Some(3)),
            ("unknown", "core_cpus_list", "0-7", None),
            ("bad", "core_cpus_list", "0-x", None),
            ("huge", "core_cpus_list", "0-18446744073709551615", None),
        ] {
            let root = machine(name, &cores, file, allowed);
            assert_eq!(cores_in(&root), expected, "{name}");
            std::fs::remove_dir_all(root).unwrap();
        }
        assert_eq!(cores_in(Path::new("/nowhere")), None);
    }

    #[test]
    fn this_machine_has_a_core_for_this_process() {
        assert!((1..=std::thread::available_parallelism().unwrap().get()).contains(&physical_cores()));
    }
}
