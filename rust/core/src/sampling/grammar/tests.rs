use super::*;

/// One token per byte, then two of more bytes; the last two ids end an answer.
fn vocabulary() -> Vocabulary {
    let mut tokens: Vec<Vec<u8>> = (0..=254).map(|byte| vec![byte]).collect();
    tokens.extend([b"true".to_vec(), b"\":".to_vec(), Vec::new(), Vec::new()]);
    Vocabulary::new(tokens, &[(257, "<end>".into()), (258, "<turn>".into())], &[257, 258]).unwrap()
}

fn json(text: &str) -> Source {
    Source::JsonSchema { text: text.into(), flexible: false }
}

/// Whether the bytes are a whole answer.
fn accepts(source: &Source, text: &str) -> bool {
    let mut matcher = vocabulary().compile(source).unwrap().matcher();
    for &byte in text.as_bytes() {
        if !matcher.mask().unwrap().allows(u32::from(byte)) {
            return false;
        }
        matcher.commit(u32::from(byte));
    }
    matcher.is_done() || matcher.mask().unwrap().allows(257)
}

#[test]
fn each_kind_accepts_what_it_describes() {
    let object = json(
        r#"{"type":"object","properties":{"a":{"type":"integer"}},"required":["a"],
        "additionalProperties":false}"#,
    );
    let flexible = match object.clone() {
        Source::JsonSchema { text, .. } => Source::JsonSchema { text, flexible: true },
        other => other,
    };
    let choices = Source::Choices(["yes", "no", "a.b|c", "no way", "é\n"].map(String::from).to_vec());
    let lark = Source::Lark("start: \"(\" INNER \")\"\nINNER: /[a-c]+/".into());
    for (source, good, bad) in [
        (&object, &[r#"{"a":12}"#, r#"{"a":-1}"#][..], &[r#"{"a": 12}"#, r#"{"a":1.5}"#, "{}", "12"][..]),
        (&flexible, &["{\n \"a\": 12 }", r#"{"a":12}"#], &["{}"]),
        (&Source::Regex("[0-9]{2,3}".into()), &["12", "123"], &["1", "1234", "a1"]),
        (&choices, &["yes", "no", "a.b|c", "no way", "é\n"], &["axb|c", "n", "nope", "c", ""]),
        (&lark, &["(ab)"], &["()", "(ad)", "(ab"]),
        (&json("true"), &["1", "\"x\"", "[]"], &[" 1", "{]"]),
    ] {
        source.check().unwrap();
        good.iter().for_each(|text| assert!(accepts(source, text), "{source:?} must accept {text}"));
        bad.iter().for_each(|text| assert!(!accepts(source, text), "{source:?} must not accept {text}"));
    }
}

#[test]
fn every_stop_id_ends_a_whole_answer_and_no_other_id_does() {
    let grammar = vocabulary().compile(&Source::Regex("a+".into())).unwrap();
    let mut matcher = grammar.matcher();
    let allowed = |matcher: &mut Matcher| -> Vec<u32> {
        let mask = matcher.mask().unwrap();
        (0..300).filter(|&id| mask.allows(id)).collect()
    };
    assert_eq!(allowed(&mut matcher), [97]);
    matcher.commit(97);
    assert_eq!(allowed(&mut matcher), [97, 257, 258]);
    assert!(!matcher.is_done());
    matcher.commit(258);
    assert!(matcher.is_done());
    assert_eq!(allowed(&mut grammar.matcher()), [97], "a matcher leaves others as they are");
}

#[test]
fn tokens_of_several_bytes_and_a_given_beginning() {
    let grammar = vocabulary().compile(&json(r#"{"type":"boolean"}"#)).unwrap();
    let mut matcher = grammar.matcher();
    assert!(matcher.mask().unwrap().allows(255), "the token `true`");
    matcher.advance(&[u32::from(b't'), u32::from(b'r')]).unwrap();
    assert!(!matcher.mask().unwrap().allows(255));
    let error = grammar.matcher().advance(&[u32::from(b't'), 255]).unwrap_err().to_string();
    assert!(error.contains("token 2"), "{error}");
    let mut whole = grammar.matcher();
    whole.advance(&[255]).unwrap();
    assert!(whole.is_done());
    assert!(whole.advance(&[255]).is_err());
    let mask = whole.mask().unwrap();
    assert_eq!((0..300).filter(|&id| mask.allows(id)).collect::<Vec<_>>(), [257, 258]);
}

#[test]
fn what_cannot_be_honoured_is_refused_in_one_line() {
    let nested = format!("{}{}", "[".repeat(5000), "]".repeat(5000));
    let deep = format!("{}true{}", r#"{"items":"#.repeat(5000), "}".repeat(5000));
    let parentheses = format!("{}a{}", "(".repeat(100_000), ")".repeat(100_000));
    for (source, words) in [
        (json(r#"{"uniqueItems":true,"type":"array"}"#), "uniqueItems"),
        (json(r#"{"type":"string","format":"ipv9"}"#), "ipv9"),
        (json(r#"{"$ref":"https://example.com/other.json"}"#), "example.com"),
        (json("[1]"), "must be a JSON object"),
        (json("{"), "JSON"),
        (json("false"), "nsatisfiable"),
        (json(r##"{"$ref":"#"}"##), "no text matches"),
        (Source::Regex("a".repeat(MAX_REGEX + 1)), "bytes"),
        (json(&nested), "JSON"),
        (json(&deep), "JSON"),
        (json(&" ".repeat(MAX_BYTES + 1)), "bytes"),
        (Source::Regex("(?=a)b".into()), "look-around"),
        (Source::Regex("(".into()), "regex"),
        (Source::Regex(parentheses.clone()), ""),
        (Source::Choices(vec![]), "choices"),
        (Source::Choices(vec!["a".into(), String::new()]), "choices"),
        (Source::Lark("start: missing".into()), "missing"),
        (Source::Lark(format!("start: {parentheses}")), ""),
    ] {
        let error = source.check().unwrap_err().to_string();
        assert!(error.contains(words) && !error.contains('\n') && error.len() < 1000, "{words}: {error}");
        assert!(vocabulary().compile(&source).is_err(), "{words}");
    }
}

#[test]
fn a_special_token_can_be_named_in_lark_and_is_no_text() {
    let grammar = vocabulary().compile(&Source::Lark("start: \"a\" <turn>".into())).unwrap();
    let mut matcher = grammar.matcher();
    matcher.commit(97);
    assert!(matcher.mask().unwrap().allows(258));
    assert!(!accepts(&Source::Regex("<turn>b?".into()), "\u{1}"));
    let missing = vocabulary().compile(&Source::Lark("start: <other>".into()));
    assert!(missing.err().unwrap().to_string().contains("other"));
}

#[test]
fn vocabularies_that_cannot_be() {
    assert!(Vocabulary::new(vec![], &[], &[]).is_err());
    assert!(Vocabulary::new(vec![b"a".to_vec()], &[], &[1]).is_err());
    let long = vec![vec![b'a'; 5000], b"a".to_vec(), vec![0xff, 0x41]];
    let grammar = Vocabulary::new(long, &[], &[]).unwrap().compile(&Source::Regex("a+".into())).unwrap();
    let mask = grammar.matcher().mask().unwrap();
    assert_eq!([0, 1, 2].map(|id| mask.allows(id)), [false, true, false]);
}
