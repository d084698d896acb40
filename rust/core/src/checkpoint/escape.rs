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

/// Controls (C0, DEL, C1), direction marks, line separators, and what Unicode lets a font ignore.
///
/// With invisible characters, different names would look alike (`one_line` of util/text.py has the same list).
fn acts_on_terminal(character: char) -> bool {
    character.is_control()
        || matches!(character, '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}'
            | '\u{180b}'..='\u{180f}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
            | '\u{3164}' | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{ffa0}' | '\u{fff0}'..='\u{fffb}'
            | '\u{1bca0}'..='\u{1bca3}' | '\u{1d173}'..='\u{1d17a}' | '\u{e0000}'..='\u{e0fff}')
}

#[cfg(test)]
mod tests {
    use super::escape_for_terminal;

    #[test]
    fn escapes_what_a_terminal_obeys() {
        assert_eq!(escape_for_terminal("a\u{1b}]52;c;AA\u{7}"), "a\\u{1b}]52;c;AA\\u{7}");
        assert_eq!(escape_for_terminal("\u{9b}2J\u{202e}x"), "\\u{9b}2J\\u{202e}x");
        assert_eq!(escape_for_terminal("a\u{200b}b\u{3164}"), "a\\u{200b}b\\u{3164}");
        assert_eq!(escape_for_terminal("model.norm.weight é 漢"), "model.norm.weight é 漢");
    }

    #[test]
    fn cuts_long_text() {
        assert_eq!(escape_for_terminal(&"x".repeat(100_000)).chars().count(), 161);
    }
}
