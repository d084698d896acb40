//! The rooms of each crate's `src/lib.rs`, in the order of its list: a room imports only from rooms before it, and the files of a room
//! import each other in one direction. A file of a mechanism's folder is in the room that it is named after. A new file needs no
//! entry here.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// Module path (`forward::attention::mla`) to its code, without comments and unit tests.
type Sources = BTreeMap<String, String>;

fn sources(folder: &Path, module: &str, found: &mut Sources) {
    for entry in fs::read_dir(folder).expect("src is readable") {
        let path = entry.expect("src is readable").path();
        let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let own = [module, &stem].join("::").trim_start_matches("::").to_owned();
        match path.extension() {
            _ if stem == "tests" => {}
            None => sources(&path, &own, found),
            Some(extension) if extension == "rs" => {
                let text = fs::read_to_string(&path).expect("UTF-8");
                let text = text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
                let code = text.lines().filter_map(|line| line.split("//").next());
                let code = code.collect::<Vec<_>>().join("\n").replace("pub(in crate::", "pub(in ");
                found.insert(if stem == "mod" { module.to_owned() } else { own }, code);
            }
            Some(_) => {}
        }
    }
}

/// The paths of a use tree: `a::{b, c::d}` gives `a::b` and `a::c::d`. Returns what follows the tree.
fn expand<'a>(rest: &'a str, before: &str, paths: &mut Vec<String>) -> &'a str {
    let name = rest.trim_start();
    if let Some(mut group) = name.strip_prefix('{') {
        loop {
            group = expand(group, before, paths).trim_start();
            match group.strip_prefix(',') {
                Some(next) => group = next,
                None => return group.strip_prefix('}').unwrap_or(group),
            }
        }
    }
    let end = name.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(name.len());
    let path = format!("{before}::{}", &name[..end]).trim_start_matches("::").to_owned();
    match name[end..].strip_prefix("::") {
        Some(inner) => expand(inner, &path, paths),
        None => {
            paths.push(path);
            &name[end..]
        }
    }
}

/// The paths of the use tree at the beginning of `tree`, from the crate's root.
fn absolute(module: &str, tree: &str) -> Vec<String> {
    let (mut base, mut rest) = (module.to_owned(), tree.trim_start_matches("self::"));
    while let Some(outer) = rest.strip_prefix("super::") {
        (rest, base) = (outer, base.rsplit_once("::").map_or(String::new(), |(outer, _)| outer.to_owned()));
    }
    let mut paths = Vec::new();
    match rest.strip_prefix("crate::") {
        Some(from_root) => expand(from_root, "", &mut paths),
        None => expand(rest, &base, &mut paths),
    };
    paths
}

/// Every path in a module's code that begins with `crate`, `super`, `self` or a child.
fn paths(module: &str, code: &str, sources: &Sources) -> Vec<String> {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let mut found = Vec::new();
    for (at, _) in code.match_indices("::") {
        let start = code[..at].rfind(|c| !is_word(c)).map_or(0, |before| before + 1);
        let first = &code[start..at];
        let is_child = sources.contains_key(&format!("{module}::{first}"));
        if !code[..start].ends_with("::") && (is_child || ["crate", "super", "self"].contains(&first)) {
            found.extend(absolute(module, &code[start..]));
        }
    }
    found
}

/// The modules that a path of a room's code points to: the list of mechanisms stands for the room's file of each.
fn targets_of(path: &str, room: Option<&str>, sources: &Sources) -> Vec<String> {
    match (target(path, sources), room) {
        (Some(list), Some(room)) if list == "mechanisms" => {
            let file = format!("::{room}");
            let of_room = |module: &&String| module.starts_with("mechanisms::") && module.ends_with(&file);
            sources.keys().filter(of_room).cloned().collect()
        }
        (target, _) => target.into_iter().collect(),
    }
}

/// The module that a path points to; a name that a module re-exports belongs to the module that it comes from.
fn target(path: &str, sources: &Sources) -> Option<String> {
    let mut module = path.to_owned();
    while !sources.contains_key(&module) {
        module = module.rsplit_once("::")?.0.to_owned();
    }
    let name = path[module.len()..].trim_start_matches("::").split("::").next()?;
    let public = sources[&module].split("\npub").filter_map(|item| item.split_once(" use "));
    let exported = public.filter(|(kind, _)| kind.len() < 12).flat_map(|(_, tree)| absolute(&module, tree));
    let is_original = |other: &String| other != path && other.ends_with(&format!("::{name}"));
    exported.into_iter().find(is_original).and_then(|path| target(&path, sources)).or(Some(module))
}

/// What breaks the rules in the crate at `folder`, whose `lib.rs` lists its rooms.
fn faults(folder: &Path) -> Vec<String> {
    let mut all = Sources::new();
    sources(&folder.join("src"), "", &mut all);
    let lib = fs::read_to_string(folder.join("src/lib.rs")).expect("UTF-8");
    let list = lib.lines().filter_map(|line| line.strip_prefix("//! - `"));
    let rooms: Vec<&str> = list.filter_map(|line| line.split('`').next()).collect();
    let name = |module: &str| {
        let mut names = module.split("::");
        let first = names.next();
        if first == Some("mechanisms") { names.nth(1) } else { first }.map(str::to_owned)
    };
    let room = |module: &str| rooms.iter().position(|room| name(module).as_deref() == Some(room));
    let mut faults = Vec::new();
    let mut inside: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    let is_list =
        |module: &str| module == "lib" || (module.starts_with("mechanisms") && name(module).is_none());
    for (module, code) in all.iter().filter(|(module, _)| !is_list(module)) {
        let own = name(module);
        let targets = paths(module, code, &all).into_iter();
        let targets = targets.flat_map(|path| targets_of(&path, own.as_deref(), &all));
        for target in targets.filter(|target| target != module) {
            match (room(module), room(&target)) {
                (Some(own), Some(other)) if other < own => {}
                (Some(own), Some(other)) if other == own => {
                    inside.entry(module).or_default().insert(target);
                }
                _ => faults.push(format!("{module} imports {target}: upward, or in no room of lib.rs")),
            }
        }
    }
    for module in inside.keys() {
        let (mut below, mut open) = (BTreeSet::new(), vec![*module]);
        while let Some(next) = open.pop() {
            let imports = inside.get(next).into_iter().flatten();
            open.extend(imports.filter(|import| below.insert(import.as_str())).map(String::as_str));
        }
        if below.contains(module) {
            faults.push(format!("{module} is on a circle"));
        }
    }
    faults
}

/// ThreadSanitizer sees these (`make tsan`), and not those of the standard library.
#[test]
fn locks_are_those_of_the_platform() {
    let core = Path::new(env!("CARGO_MANIFEST_DIR"));
    for folder in ["", "../kernels", "../platform", "../python"] {
        let mut all = Sources::new();
        sources(&core.join(folder).join("src"), "", &mut all);
        for (module, code) in all.iter().filter(|(module, _)| folder != "../platform" || *module != "sync") {
            let mut paths = Vec::new();
            for (at, before) in code.match_indices("std::sync::") {
                expand(&code[at + before.len()..], "", &mut paths);
            }
            let locks = ["Mutex", "MutexGuard", "Condvar", "RwLock"];
            assert!(!paths.iter().any(|path| locks.contains(&&**path)), "{folder} {module}: {paths:?}");
        }
    }
}

#[test]
fn imports_go_down() {
    let core = Path::new(env!("CARGO_MANIFEST_DIR"));
    for folder in [core, &core.join("../kernels"), &core.join("../platform")] {
        let faults = faults(folder);
        assert!(faults.is_empty(), "{}:\n{}", folder.display(), faults.join("\n"));
    }
}
