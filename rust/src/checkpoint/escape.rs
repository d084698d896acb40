//! Text out of a file, made fit for one line of a terminal.

/// Longest piece of foreign text in a message, in characters.
const LONGEST: usize = 160;

/// `text` with control and direction characters escaped, and cut after 160 characters.
///
/// Every name or value that comes from a file goes through here before it enters a message: a terminal obeys
/// what it is shown (OSC 52 writes the clipboard), and a 100,000-character name hides the message.
pub(crate) fn escape_for_terminal(text: &str) -> String {
    let mut out = String::new();
    for (count, character) in text.chars().enumerate() {
        if count == LONGEST {
            out.push('…');
            break;
        }
        if acts_on_terminal(character) {
            out.extend(character.escape_unicode());
        } else {
            out.push(character);
        }
    }
    out
}

/// Controls (C0, DEL, C1), direction marks, zero-width and line separators.
fn acts_on_terminal(character: char) -> bool {
    character.is_control()
        || matches!(character, '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

#[cfg(test)]
mod tests {
    use super::escape_for_terminal;

    #[test]
    fn escapes_what_a_terminal_obeys() {
        assert_eq!(escape_for_terminal("a\u{1b}]52;c;AA\u{7}"), "a\\u{1b}]52;c;AA\\u{7}");
        assert_eq!(escape_for_terminal("\u{9b}2J\u{202e}x"), "\\u{9b}2J\\u{202e}x");
        assert_eq!(escape_for_terminal("model.norm.weight é 漢"), "model.norm.weight é 漢");
    }

    #[test]
    fn cuts_long_text() {
        assert_eq!(escape_for_terminal(&"x".repeat(100_000)).chars().count(), 161);
    }
}
