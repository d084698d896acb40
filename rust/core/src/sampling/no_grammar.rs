//! Replaces `grammar` in a build without the feature: none of its types can be created.

use crate::Result;
use crate::sampling::mask::Mask;

/// A compiled grammar, of which there is none.
#[derive(Debug)]
pub enum Grammar {}

impl Grammar {
    /// A matcher at the beginning of an answer.
    pub fn matcher(&self) -> Matcher {
        match *self {}
    }
}

/// The place in a grammar that an answer has reached, of which there is none.
pub enum Matcher {}

impl Matcher {
    /// A matcher at the same place.
    pub fn copy(&self) -> Self {
        match *self {}
    }

    /// The ids that are allowed next.
    ///
    /// # Errors
    /// None: there is no matcher.
    pub fn mask(&mut self) -> Result<Mask> {
        match *self {}
    }

    /// Whether nothing can follow.
    pub fn has_stopped(&self) -> bool {
        match *self {}
    }

    /// Takes a token.
    pub fn commit(&mut self, _id: u32) {
        match *self {}
    }

    /// Takes the tokens that an answer begins with.
    ///
    /// # Errors
    /// None: there is no matcher.
    pub fn advance(&mut self, _ids: &[u32]) -> Result<()> {
        match *self {}
    }

    /// Whether the answer is whole.
    pub fn is_done(&self) -> bool {
        match *self {}
    }
}
