//! The processor cores that this process may use.

use std::collections::BTreeSet;
use std::path::Path;

/// The physical cores of the affinity, but no more than the quota of the control group allows: two hyperthreads of a core
/// share the units that compute a product, and its caches.
///
/// Where the system does not say which processors share a core, each counts as one.
pub fn physical_cores() -> usize {
    let usable = std::thread::available_parallelism().map_or(1, |n| n.get());
    cores_in(Path::new("/")).map_or(usable, |cores| cores.len().clamp(1, usable))
}

/// A physical core that this process may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Core {
    /// Its first processor.
    pub processor: usize,
    /// How fast it is, compared with the other cores of the machine.
    pub capacity: u64,
}

/// The physical cores of the affinity, the fastest first. Empty where the system does not say.
pub fn fastest_cores() -> Vec<Core> {
    let mut cores = cores_in(Path::new("/")).unwrap_or_default();
    cores.sort_by_key(|core| std::cmp::Reverse(core.capacity));
    cores
}

/// Keeps the calling thread on a processor; whether it could.
pub fn stay_on(processor: usize) -> bool {
    #[cfg(target_os = "linux")]
    {
        // SAFETY: zeros are a set without processors; `CPU_SET` ignores a number that is too large for it; the call reads
        // the set, whose size it is told.
        unsafe {
            let mut set: libc::cpu_set_t = std::mem::zeroed();
            libc::CPU_SET(processor % libc::CPU_SETSIZE as usize, &mut set);
            libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set) == 0
        }
    }
    #[cfg(not(target_os = "linux"))]
    {
        let _ = processor;
        false
    }
}

/// The cores of the processors that /proc/self/status allows; those of one core have the same list of siblings.
///
/// Sources: proc(5); Linux Documentation/admin-guide/cputopology.rst (`core_cpus_list`, before Linux 5.3
/// `thread_siblings_list`); Documentation/ABI/testing/sysfs-devices-system-cpu (`cpu_capacity`, on Arm and hybrid x86;
/// without it the highest frequency).
fn cores_in(root: &Path) -> Option<Vec<Core>> {
    let status = std::fs::read_to_string(root.join("proc/self/status")).ok()?;
    let allowed = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
    let read = |cpu: usize, names: [&str; 2]| {
        let folder = root.join(format!("sys/devices/system/cpu/cpu{cpu}"));
        names.into_iter().find_map(|name| std::fs::read_to_string(folder.join(name)).ok())
    };
    let (mut cores, mut seen) = (Vec::new(), BTreeSet::new());
    for processor in processors(allowed.trim())? {
        if seen.insert(read(processor, ["topology/core_cpus_list", "topology/thread_siblings_list"])?) {
            let capacity = read(processor, ["cpu_capacity", "cpufreq/cpuinfo_max_freq"]);
            let capacity = capacity.and_then(|number| number.trim().parse().ok());
            cores.push(Core { processor, capacity: capacity.unwrap_or(1) });
        }
    }
    Some(cores)
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
            assert_eq!(cores_in(&root).map(|cores| cores.len()), expected, "{name}");
            std::fs::remove_dir_all(root).unwrap();
        }
        assert_eq!(cores_in(Path::new("/nowhere")), None);
    }

    #[test]
    fn cores_have_capacities_and_one_processor_each() {
        let root = machine("hybrid", &["0,4", "1,5", "2", "3"], "core_cpus_list", "0-3");
        for (cpu, file, capacity) in [
            (0, "cpu_capacity", "1024"),
            (1, "cpu_capacity", "1024"),
            (2, "cpu_capacity", "512"),
            (3, "x", "9"),
        ] {
            std::fs::write(root.join(format!("sys/devices/system/cpu/cpu{cpu}/{file}")), capacity).unwrap();
        }
        let found: Vec<_> =
            cores_in(&root).unwrap().iter().map(|core| (core.processor, core.capacity)).collect();
        assert_eq!(found, [(0, 1024), (1, 1024), (2, 512), (3, 1)]);
        std::fs::remove_dir_all(root).unwrap();
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn a_thread_stays_where_it_is_told() {
        let Some(&core) = fastest_cores().last() else { return };
        std::thread::spawn(move || {
            assert!(stay_on(core.processor));
            assert_eq!(std::thread::available_parallelism().unwrap().get(), 1);
        })
        .join()
        .unwrap();
    }

    #[test]
    fn this_machine_has_a_core_for_this_process() {
        assert!((1..=std::thread::available_parallelism().unwrap().get()).contains(&physical_cores()));
    }
}
