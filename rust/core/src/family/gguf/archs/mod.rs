//! The GGUF architectures: a few facts for each; everything else is in its family.

mod attention;
mod hybrid;
mod mixtures;

use super::arch::Arch;
use super::source::Source;
use crate::checkpoint::escape_for_terminal;
use ropechat_platform::error::Result;

/// The architectures, and the model types whose files have each.
pub(super) fn names() -> impl Iterator<Item = (&'static str, Vec<&'static str>)> {
    let types =
        |arch: &Arch| [arch.model_type].into_iter().chain(arch.mixture).chain(arch.others.iter().copied());
    all().map(move |arch| (arch.name, types(arch).collect()))
}

/// All architectures.
fn all() -> impl Iterator<Item = &'static Arch> {
    attention::ARCHS.iter().chain(mixtures::ARCHS).chain(hybrid::ARCHS)
}

/// The architecture that the file names. Errors: `Unsupported` for one that is not known here.
pub(super) fn find(source: &Source<'_>) -> Result<&'static Arch> {
    all().find(|arch| arch.name == source.arch).ok_or_else(|| {
        const NAMED: usize = 8;
        let mut rest = all().map(|arch| arch.name);
        let named: Vec<&str> = rest.by_ref().take(NAMED).collect();
        let what = format!(
            "\"{}\"; supported: {} and {} more, which `ropechat models families` lists",
            escape_for_terminal(&source.arch),
            named.join(", "),
            rest.count()
        );
        source.unsupported("general.architecture", what)
    })
}
