//! A reading position in the file that never moves beyond the end.

use std::path::Path;

use crate::checkpoint::escape_for_terminal;
use ropechat_platform::error::{Error, Result};

/// Longest text: chat templates have some 100 KB, tokens some 100 bytes.
const LONGEST_TEXT: u64 = 16 << 20;

/// The unread rest of a file.
#[derive(Debug, Clone)]
pub(super) struct Cursor<'a> {
    path: &'a Path,
    file: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    pub fn new(path: &'a Path, file: &'a [u8]) -> Self {
        Self { path, file, at: 0 }
    }

    /// Where the next value begins.
    pub fn at(&self) -> usize {
        self.at
    }

    /// Bytes of the whole file.
    pub fn file_len(&self) -> usize {
        self.file.len()
    }

    /// The file, for messages.
    pub fn path(&self) -> &'a Path {
        self.path
    }

    /// `what` is `must be X (got Y); <what to do>`; `field` is escaped here.
    pub fn fault(&self, field: &str, what: &str) -> Error {
        Error::Format { path: self.path.to_owned(), field: escape_for_terminal(field), what: what.to_owned() }
    }

    /// The next `len` bytes.
    pub fn take(&mut self, len: u64, field: &str) -> Result<&'a [u8]> {
        let rest = &self.file[self.at..];
        let Some(bytes) = usize::try_from(len).ok().and_then(|len| rest.get(..len)) else {
            let what = format!(
                "it takes {len} bytes from byte {}, and the file ends at {}; the file is truncated or damaged; \
                 download it again",
                self.at,
                self.file.len()
            );
            return Err(self.fault(field, &what));
        };
        self.at += bytes.len();
        Ok(bytes)
    }

    fn array<const N: usize>(&mut self, field: &str) -> Result<[u8; N]> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N as u64, field)?);
        Ok(array)
    }

    pub fn u32(&mut self, field: &str) -> Result<u32> {
        Ok(u32::from_le_bytes(self.array(field)?))
    }

    pub fn u64(&mut self, field: &str) -> Result<u64> {
        Ok(u64::from_le_bytes(self.array(field)?))
    }

    /// A text's bytes; the caller decides what to do when they are not UTF-8.
    pub fn text(&mut self, field: &str) -> Result<&'a [u8]> {
        let len = self.u64(field)?;
        if len > LONGEST_TEXT {
            let what = format!(
                "must be a text of at most {LONGEST_TEXT} bytes (got {len}); download the file again"
            );
            return Err(self.fault(field, &what));
        }
        self.take(len, field)
    }

    /// A string that must be UTF-8: a name. Copied before it is checked, because others may write to a mapped file.
    pub fn name(&mut self, field: &str) -> Result<String> {
        let at = self.at;
        let bytes = self.text(field)?;
        String::from_utf8(bytes.to_vec()).map_err(|_| {
            let what =
                format!("the name at byte {at} is not UTF-8; UTF-8 is expected; download the file again");
            self.fault(field, &what)
        })
    }

    /// Checks that the rest of the file has space for `count` items of at least `least` bytes each.
    pub fn fits(&self, count: u64, least: u64, field: &str) -> Result<()> {
        let rest = (self.file.len() - self.at) as u64;
        if count <= rest / least {
            return Ok(());
        }
        let what = format!(
            "{count}, and the {rest} bytes that follow hold {} at most; the file is truncated or damaged; \
             download it again",
            rest / least
        );
        Err(self.fault(field, &what))
    }
}
