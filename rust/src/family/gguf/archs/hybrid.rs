//! Architectures with layers that have a recurrent state.

use super::Arch;

/// The architectures.
pub(super) static ARCHS: &[Arch] = &[];
