//! Mutations of JSON that keep it JSON: bytes alone seldom get behind the parser.

use serde_json::{Map, Value, json};

struct Draw(u64);

impl Draw {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        ((self.0 >> 33) as usize) % n.max(1)
    }
}

/// The text with one to three of its values or keys changed; None when it is no JSON.
pub fn mutate(text: &[u8], seed: u32) -> Option<Vec<u8>> {
    let mut value: Value = serde_json::from_slice(text).ok()?;
    let mut draw = Draw(u64::from(seed) ^ 0x9e37_79b9_7f4a_7c15);
    for _ in 0..=draw.below(3) {
        let count = nodes(&value);
        let chosen = draw.below(count);
        let given = value.clone();
        change(&mut value, &mut { chosen }, &given, &mut draw);
    }
    serde_json::to_vec(&value).ok()
}

fn nodes(value: &Value) -> usize {
    1 + match value {
        Value::Array(items) => items.iter().map(nodes).sum(),
        Value::Object(fields) => fields.values().map(nodes).sum::<usize>(),
        _ => 0,
    }
}

/// Changes node number `left`, counted from the outside. Returns whether it was below `value`.
fn change(value: &mut Value, left: &mut usize, whole: &Value, draw: &mut Draw) -> bool {
    if *left == 0 {
        replace(value, whole, draw);
        return true;
    }
    *left -= 1;
    match value {
        Value::Array(items) => items.iter_mut().any(|item| change(item, left, whole, draw)),
        Value::Object(fields) => fields.values_mut().any(|field| change(field, left, whole, draw)),
        _ => false,
    }
}

fn replace(value: &mut Value, whole: &Value, draw: &mut Draw) {
    match value {
        Value::Object(fields) if !fields.is_empty() => change_fields(fields, draw),
        Value::Array(items) if draw.below(3) > 0 => match draw.below(3) {
            0 => drop(items.pop()),
            1 if items.len() < 64 => {
                let at = draw.below(items.len() + 1);
                items.insert(at, items.first().cloned().unwrap_or(json!(1)));
            }
            _ => items.reverse(),
        },
        Value::Number(number) if draw.below(3) > 0 => *value = near(number.as_f64().unwrap_or(1.0), draw),
        Value::String(text) if draw.below(3) > 0 => match draw.below(3) {
            0 => text.push('x'),
            1 => drop(text.pop()),
            _ => *text = "\u{1b}]0;\u{202e}".to_owned(),
        },
        _ => *value = other(whole, draw),
    }
}

fn change_fields(fields: &mut Map<String, Value>, draw: &mut Draw) {
    let keys: Vec<String> = fields.keys().cloned().collect();
    let (one, two) = (&keys[draw.below(keys.len())], &keys[draw.below(keys.len())]);
    match draw.below(3) {
        0 => drop(fields.remove(one)),
        1 => {
            // Two keys change their values.
            let (first, second) = (fields[one].clone(), fields[two].clone());
            fields.insert(one.clone(), second);
            fields.insert(two.clone(), first);
        }
        _ => {
            let value = fields[one].clone();
            fields.insert(format!("{two}_2"), value);
        }
    }
}

fn near(number: f64, draw: &mut Draw) -> Value {
    match draw.below(12) {
        0 => json!((number as i64).wrapping_add(1)),
        1 => json!((number as i64).wrapping_sub(1)),
        2 => json!((number as i64).wrapping_mul(2)),
        3 => json!(number as i64 / 2),
        4 => json!(-number),
        5 => json!(0),
        6 => json!(number + 0.5),
        7 => json!(1u64 << draw.below(64)),
        8 => json!(u64::MAX),
        9 => json!(1e308),
        10 => json!(draw.below(17)),
        _ => json!(1e-320),
    }
}

/// A value of another kind, or one from elsewhere in the text.
fn other(whole: &Value, draw: &mut Draw) -> Value {
    match draw.below(8) {
        0 => Value::Null,
        1 => json!(draw.below(2) == 0),
        2 => json!([]),
        3 => json!({}),
        4 => json!("default"),
        5 => json!([1, 2]),
        _ => match whole {
            Value::Object(fields) => {
                fields.values().nth(draw.below(fields.len())).cloned().unwrap_or(json!(2))
            }
            _ => json!(3),
        },
    }
}
