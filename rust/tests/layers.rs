//! The Rust half of CONTRIBUTING's map, read from the sources.
//!
//! The list in `src/lib.rs` is the law: a module imports only modules of its own layer and of those before it there.
//! `unsafe` lives in a few files only, and every block says why it is sound.

use std::fs;
use std::path::{Path, PathBuf};

/// Where `unsafe` may be written, relative to `src/`.
const MAY_BE_UNSAFE: [&str; 8] =
    ["buffer.rs", "mapped.rs", "system.rs", "kernel/", "parallel.rs", "weight.rs", "checkpoint/", "python/"];

struct Source {
    /// Relative to `src/`, with forward slashes.
    path: String,
    /// The text without comments and string contents, line by line; the unit tests at the end are left out.
    code: Vec<String>,
    /// The text as it stands, the same lines.
    text: Vec<String>,
}

impl Source {
    fn new(path: &str, text: &str) -> Self {
        let code = without_comments_and_strings(text);
        let mut code: Vec<String> = code.lines().map(str::to_owned).collect();
        if let Some(tests) = code.iter().position(|line| line.trim() == "#[cfg(test)]") {
            // Helpers under cfg(test) may stand anywhere; only a module of tests ends the file.
            if code.get(tests + 1).is_some_and(|line| line.trim_start().starts_with("mod ")) {
                code.truncate(tests);
            }
        }
        Self { path: path.to_owned(), code, text: text.lines().map(str::to_owned).collect() }
    }

    /// `kernel/avx2.rs` and `kernel/mod.rs` are `kernel`; `forward.rs` is `forward`.
    fn module(&self) -> &str {
        self.path.split(['/', '.']).next().unwrap_or_default()
    }

    /// How many `super::` lead to the crate's root.
    fn depth(&self) -> usize {
        let names = self.path.trim_end_matches(".rs").trim_end_matches("/mod");
        names.split('/').count()
    }

    /// Unit tests in files of their own (`kernel/tests.rs`) may use what they like.
    fn is_tests(&self) -> bool {
        self.path.ends_with("/tests.rs") || self.path.contains("/tests/")
    }
}

fn sources() -> Vec<Source> {
    fn walk(directory: &Path, files: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(directory).expect("src is readable") {
            let path = entry.expect("src is readable").path();
            if path.is_dir() {
                walk(&path, files);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                files.push(path);
            }
        }
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    walk(&root, &mut files);
    files.sort();
    let relative =
        |file: &Path| file.strip_prefix(&root).expect("below src").to_string_lossy().replace('\\', "/");
    files.iter().map(|file| Source::new(&relative(file), &fs::read_to_string(file).expect("UTF-8"))).collect()
}

/// Comments and the insides of string and character literals become spaces; line breaks stay.
fn without_comments_and_strings(text: &str) -> String {
    let chars: Vec<char> = text.chars().collect();
    let mut out = String::with_capacity(text.len());
    let mut i = 0;
    let blank = |out: &mut String, from: usize, to: usize| {
        out.extend(chars[from..to].iter().map(|&c| if c == '\n' { '\n' } else { ' ' }));
    };
    while i < chars.len() {
        let rest = &chars[i..];
        let end = if rest.starts_with(&['/', '/']) {
            rest.iter().position(|&c| c == '\n').unwrap_or(rest.len())
        } else if rest.starts_with(&['/', '*']) {
            block_comment(rest)
        } else if rest[0] == '"' {
            string(rest)
        } else if rest[0] == 'r' && !out.ends_with(|c: char| c.is_alphanumeric() || c == '_') {
            raw_string(rest)
        } else if rest[0] == '\'' {
            character(rest)
        } else {
            0
        };
        if end == 0 {
            out.push(rest[0]);
            i += 1;
        } else {
            blank(&mut out, i, i + end);
            i += end;
        }
    }
    out
}

/// Length of a (nested) block comment.
fn block_comment(rest: &[char]) -> usize {
    let (mut depth, mut i) = (0, 0);
    while i < rest.len() {
        if rest[i..].starts_with(&['/', '*']) {
            depth += 1;
            i += 2;
        } else if rest[i..].starts_with(&['*', '/']) {
            depth -= 1;
            i += 2;
            if depth == 0 {
                return i;
            }
        } else {
            i += 1;
        }
    }
    rest.len()
}

/// Length of a string literal, escapes counted.
fn string(rest: &[char]) -> usize {
    let mut i = 1;
    while i < rest.len() && rest[i] != '"' {
        i += if rest[i] == '\\' { 2 } else { 1 };
    }
    (i + 1).min(rest.len())
}

/// Length of `r"..."` or `r#"..."#`; 0 for an identifier that begins with r.
fn raw_string(rest: &[char]) -> usize {
    let hashes = rest[1..].iter().take_while(|&&c| c == '#').count();
    if rest.get(1 + hashes) != Some(&'"') {
        return 0;
    }
    let close: Vec<char> = std::iter::once('"').chain(std::iter::repeat_n('#', hashes)).collect();
    let open = hashes + 2;
    rest[open..]
        .windows(close.len())
        .position(|w| w == close)
        .map_or(rest.len(), |at| open + at + close.len())
}

/// Length of a character literal; 0 for a lifetime.
fn character(rest: &[char]) -> usize {
    match rest.get(1) {
        Some('\\') => rest.iter().skip(3).position(|&c| c == '\'').map_or(0, |at| at + 4),
        Some(_) if rest.get(2) == Some(&'\'') => 3,
        _ => 0,
    }
}

/// The layers of `src/lib.rs`'s list, lowest first: the names in backticks before the colon of each `- L<n>` line.
fn layers(lib: &str) -> Vec<Vec<String>> {
    let lines = lib.lines().filter_map(|line| line.strip_prefix("//! - L"));
    let heads = lines.map(|line| line.split_once(':').expect("`- L<n> modules: what they do`").0);
    heads.map(|head| head.split('`').skip(1).step_by(2).map(str::to_owned).collect()).collect()
}

/// The crate's modules that a source names: after `crate::`, or after as many `super::` as lead to the root.
fn imports(source: &Source) -> Vec<(usize, String)> {
    let code = source.code.join("\n");
    let mut found = Vec::new();
    let mut keep = |at: usize, rest: &str| {
        let line = code[..at].matches('\n').count() + 1;
        found.extend(first_names(rest).into_iter().map(|name| (line, name)));
    };
    for (at, prefix) in code.match_indices("crate::") {
        keep(at, &code[at + prefix.len()..]);
    }
    for (at, _) in code.match_indices("super::").filter(|(at, _)| !code[..*at].ends_with("super::")) {
        let rest = code[at..].trim_start_matches("super::");
        let ups = (code.len() - at - rest.len()) / "super::".len();
        if ups >= source.depth() + inline_modules(&code[..at]) {
            keep(at, rest);
        }
    }
    found
}

/// How many `mod name {` are open at the end of this text.
fn inline_modules(text: &str) -> usize {
    let mut open = Vec::new();
    for (at, c) in text.char_indices() {
        match c {
            '{' => open.push(text[..at].split_whitespace().rev().nth(1) == Some("mod")),
            '}' => drop(open.pop()),
            _ => {}
        }
    }
    open.into_iter().filter(|&is_module| is_module).count()
}

/// `a::b` names a; `{a, b::{c, d}}` names a and b.
fn first_names(rest: &str) -> Vec<String> {
    let name = |text: &str| text.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect::<String>();
    let Some(group) = rest.strip_prefix('{') else {
        return vec![name(rest)];
    };
    let (mut depth, mut start, mut names) = (0, 0, Vec::new());
    for (at, c) in group.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth > 0 => depth -= 1,
            '}' | ',' if depth == 0 => {
                names.push(name(group[start..at].trim_start()));
                start = at + 1;
                if c == '}' {
                    break;
                }
            }
            _ => {}
        }
    }
    names.retain(|name| !name.is_empty());
    names
}

/// Imports that go up.
fn layer_faults(source: &Source, layers: &[Vec<String>]) -> Vec<String> {
    let own = source.module();
    if own == "lib" || source.is_tests() {
        return Vec::new();
    }
    let Some(level) = layers.iter().position(|layer| layer.iter().any(|name| name == own)) else {
        return vec![format!("{}: `{own}` has no place in the list of lib.rs", source.path)];
    };
    let mut faults = Vec::new();
    for (line, name) in imports(source) {
        // `crate::Error` and `crate::Result` are the root's names for error's.
        let module = if matches!(name.as_str(), "Error" | "Result") { "error" } else { name.as_str() };
        if !layers[..=level].iter().flatten().any(|layer| layer == module) {
            faults.push(format!(
                "{}:{line}: `{own}` (L{level}) imports `{module}`, which is above it",
                source.path
            ));
        }
    }
    faults
}

/// `unsafe` outside its files, and blocks without a SAFETY line directly above their statement.
fn unsafe_faults(source: &Source) -> Vec<String> {
    let allowed = MAY_BE_UNSAFE.iter().any(|place| source.path.starts_with(place));
    let mut faults = Vec::new();
    for (at, line) in source.code.iter().enumerate() {
        let mut words = line.split(|c: char| !c.is_alphanumeric() && c != '_');
        if !words.any(|word| word == "unsafe") {
            continue;
        }
        if !allowed {
            faults.push(format!("{}:{}: unsafe lives in {MAY_BE_UNSAFE:?} only", source.path, at + 1));
        }
        let block = line.replace(' ', "");
        if (block.contains("unsafe{") || block.contains("unsafeimpl")) && !says_why(source, at) {
            faults.push(format!("{}:{}: unsafe without a SAFETY line", source.path, at + 1));
        }
    }
    faults
}

/// SAFETY in a comment on this line or above the statement that this line belongs to.
fn says_why(source: &Source, at: usize) -> bool {
    let ends = |line: &str| [";", "{", "}", ","].iter().any(|end| line.trim_end().ends_with(end));
    if source.text[at].contains("SAFETY:") {
        return true;
    }
    let is_comment =
        |i: usize| source.code[i].trim().is_empty() && source.text[i].trim_start().starts_with("//");
    let mut i = at;
    while i > 0 && !is_comment(i - 1) && !ends(&source.code[i - 1]) && !source.text[i - 1].trim().is_empty() {
        i -= 1;
    }
    while i > 0 && is_comment(i - 1) {
        i -= 1;
        if source.text[i].contains("SAFETY:") {
            return true;
        }
    }
    false
}

#[test]
fn modules_import_no_higher_layer() {
    let sources = sources();
    let lib = sources.iter().find(|source| source.path == "lib.rs").expect("src/lib.rs");
    let layers = layers(&lib.text.join("\n"));
    assert!(
        layers.len() >= 9 && layers.iter().all(|layer| !layer.is_empty()),
        "the list of lib.rs was not understood: {layers:?}"
    );
    let faults: Vec<_> = sources.iter().flat_map(|source| layer_faults(source, &layers)).collect();
    assert!(faults.is_empty(), "\n{}", faults.join("\n"));
}

#[test]
fn unsafe_is_rare_and_explained() {
    let faults: Vec<_> = sources().iter().flat_map(unsafe_faults).collect();
    assert!(faults.is_empty(), "\n{}", faults.join("\n"));
}

#[test]
fn the_layer_check_can_fail() {
    let layers =
        layers("//! - L0 [`error`], [`quant`]: a `b`\n//! - L1 [`kernel`]: c\n//! - L6 [`forward`]: d");
    let faults = |path: &str, text: &str| layer_faults(&Source::new(path, text), &layers).len();
    assert_eq!(faults("kernel/avx2.rs", "use crate::{Error, quant::{DType, q8}};\nuse super::generic;"), 0);
    assert_eq!(faults("kernel/avx2.rs", "use crate::{Error, forward::{a, b}};"), 1);
    assert_eq!(faults("kernel/avx2.rs", "use super::super::forward::a;"), 1);
    assert_eq!(faults("kernel/mod.rs", "use super::forward;"), 1);
    assert_eq!(faults("kernel/mod.rs", "mod inner { fn f() {} use super::forward; }"), 0);
    assert_eq!(faults("kernel/mod.rs", "mod inner { use super::super::forward; }"), 1);
    assert_eq!(faults("quant/mod.rs", "fn f() { crate::kernel::detect() }"), 1);
    assert_eq!(faults("quant/mod.rs", "// crate::kernel\nconst A: &str = \"crate::kernel\";"), 0);
    assert_eq!(faults("quant/mod.rs", "fn f() {}\n#[cfg(test)]\nmod tests {\n    use crate::kernel;\n}"), 0);
    assert_eq!(faults("stray.rs", ""), 1);
}

#[test]
fn the_unsafe_check_can_fail() {
    let faults = |path: &str, text: &str| unsafe_faults(&Source::new(path, text)).len();
    assert_eq!(faults("forward.rs", "// SAFETY: no.\nlet x = unsafe { f() };"), 1);
    assert_eq!(faults("kernel/avx2.rs", "let x = unsafe { f() };"), 1);
    assert_eq!(faults("kernel/avx2.rs", "// SAFETY: yes.\nlet x =\n    unsafe { f() };"), 0);
    assert_eq!(faults("kernel/avx2.rs", "// SAFETY: of another.\nlet y = 1;\nlet x = unsafe { f() };"), 1);
    assert_eq!(faults("kernel/avx2.rs", "unsafe impl Send for X {}"), 1);
    assert_eq!(faults("kernel/avx2.rs", "/// # Safety\nunsafe fn f() {}"), 0);
    assert_eq!(
        faults("forward.rs", "// unsafe\nlet a = \"unsafe {\"; let b = r#\"unsafe\"#; let c = '\\'';"),
        0
    );
}
