//! The rooms of `src/lib.rs`, in the order of its list: a room imports only from rooms before it, and the files of a room
//! import each other in one direction. A new file needs no entry here.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// Rooms whose files still import each other in circles.
const WITH_CIRCLES: [&str; 2] = ["kernel", "engine"];

/// Module path (`forward::attention::mla`) to its code, without comments and unit tests.
type Sources = BTreeMap<String, String>;

fn sources(folder: &Path, module: &str, found: &mut Sources) {
    for entry in fs::read_dir(folder).expect("src is readable") {
        let path = entry.expect("src is readable").path();
        let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let own = [module, &stem].join("::").trim_start_matches("::").to_owned();
        if stem == "tests" {
            continue;
        } else if path.is_dir() {
            sources(&path, &own, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(&path).expect("UTF-8");
            let text = text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
            let code: Vec<&str> =
                text.lines().map(|line| line.split("//").next().unwrap_or_default()).collect();
            found.insert(if stem == "mod" { module.to_owned() } else { own }, code.join("\n"));
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
    let mut base: Vec<&str> = module.split("::").collect();
    let mut rest = tree.strip_prefix("self::").unwrap_or(tree);
    if let Some(from_root) = rest.strip_prefix("crate::") {
        (rest, base) = (from_root, Vec::new());
    }
    while let Some(outer) = rest.strip_prefix("super::") {
        (rest, _) = (outer, base.pop());
    }
    let mut paths = Vec::new();
    expand(rest, &base.join("::"), &mut paths);
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

/// The module that a path points to; a name that a module re-exports belongs to the module that it comes from.
fn target(path: &str, sources: &Sources) -> Option<String> {
    let mut module = path.to_owned();
    while !sources.contains_key(&module) {
        module = module.rsplit_once("::")?.0.to_owned();
    }
    let name = path[module.len()..].trim_start_matches("::").split("::").next().unwrap_or_default();
    for (at, _) in sources[&module].match_indices(" use ").filter(|_| !name.is_empty()) {
        let is_public =
            sources[&module][..at].rsplit('\n').next().is_some_and(|line| line.starts_with("pub"));
        let exported = absolute(&module, &sources[&module][at + " use ".len()..]);
        let original = exported.iter().find(|other| *other != path && other.ends_with(&format!("::{name}")));
        if let (true, Some(original)) = (is_public, original) {
            return target(original, sources).or(Some(module));
        }
    }
    Some(module)
}

fn faults(rooms: &[&str], sources: &Sources) -> Vec<String> {
    let room = |module: &str| rooms.iter().position(|room| module.split("::").next() == Some(room));
    let mut faults = Vec::new();
    let mut below: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    for (module, code) in sources.iter().filter(|(module, _)| !["lib", ""].contains(&module.as_str())) {
        let targets = paths(module, code, sources).into_iter().filter_map(|path| target(&path, sources));
        for target in targets.filter(|target| target != module) {
            match (room(module), room(&target)) {
                (None, _) => faults.push(format!("{module} is in no room of lib.rs")),
                (Some(own), Some(other)) if other > own => faults.push(format!("{module} imports {target}")),
                (own, other) if own == other => drop(below.entry(module).or_default().insert(target)),
                _ => {}
            }
        }
    }
    // What imports nothing that is left is on no circle, nor is what nothing imports that is left.
    let is_free = |left: &BTreeMap<&str, BTreeSet<String>>, module: &str| {
        left[module].iter().all(|to| !left.contains_key(&**to))
            || !left.values().any(|to| to.contains(module))
    };
    while let Some(free) = below.keys().copied().find(|module| is_free(&below, module)) {
        below.remove(free);
    }
    let circles = below.keys().filter(|module| !WITH_CIRCLES.iter().any(|room| module.starts_with(room)));
    faults.extend(circles.map(|module| format!("{module} is on a circle of {:?}", below.keys())));
    faults
}

#[test]
fn imports_go_down() {
    let mut found = Sources::new();
    sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), "", &mut found);
    let lib = include_str!("../src/lib.rs");
    let rooms = lib.lines().filter_map(|line| line.strip_prefix("//! - `")?.split('`').next());
    let faults = faults(&rooms.collect::<Vec<_>>(), &found);
    assert!(faults.is_empty(), "\n{}", faults.join("\n"));
}
