//! GGUF files made for one test.

/// A value with its type before it.
pub fn u32_value(value: u32) -> Vec<u8> {
    [4u32.to_le_bytes(), value.to_le_bytes()].concat()
}

pub fn f32_value(value: f32) -> Vec<u8> {
    [6u32.to_le_bytes(), value.to_le_bytes()].concat()
}

pub fn text_value(value: &str) -> Vec<u8> {
    [&8u32.to_le_bytes()[..], &text(value)].concat()
}

/// A list of `count` values whose bytes are given.
pub fn list_value(kind: u32, count: u64, bytes: &[u8]) -> Vec<u8> {
    [&9u32.to_le_bytes()[..], &kind.to_le_bytes(), &count.to_le_bytes(), bytes].concat()
}

pub fn text(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat()
}

/// Name, sizes (innermost first), type, bytes.
pub type Tensor = (String, Vec<u64>, u32, Vec<u8>);

/// A file under construction; every part may be wrong.
#[derive(Clone)]
pub struct Gguf {
    pub keys: Vec<(String, Vec<u8>)>,
    pub tensors: Vec<Tensor>,
}

impl Gguf {
    /// A llama of one layer: hidden 32, two heads, 8 tokens; every tensor is F32 but the embedding, which is Q8_0.
    pub fn llama() -> Gguf {
        let mut file = Gguf { keys: Vec::new(), tensors: Vec::new() };
        file.keys.push(("general.architecture".to_owned(), text_value("llama")));
        for (key, value) in [
            ("context_length", 64),
            ("embedding_length", 32),
            ("block_count", 1),
            ("feed_forward_length", 40),
            ("attention.head_count", 2),
            ("rope.dimension_count", 16),
        ] {
            file.keys.push((format!("llama.{key}"), u32_value(value)));
        }
        file.keys.push(("llama.attention.layer_norm_rms_epsilon".to_owned(), f32_value(1e-5)));
        for (name, sizes) in [
            ("token_embd", &[32, 8][..]),
            ("output_norm", &[32]),
            ("blk.0.attn_norm", &[32]),
            ("blk.0.attn_q", &[32, 32]),
            ("blk.0.attn_k", &[32, 32]),
            ("blk.0.attn_v", &[32, 32]),
            ("blk.0.attn_output", &[32, 32]),
            ("blk.0.ffn_norm", &[32]),
            ("blk.0.ffn_gate", &[32, 40]),
            ("blk.0.ffn_up", &[32, 40]),
            ("blk.0.ffn_down", &[40, 32]),
        ] {
            let values: u64 = sizes.iter().product();
            let (kind, bytes) = if name == "token_embd" { (8, values / 32 * 34) } else { (0, values * 4) };
            file.tensors.push((format!("{name}.weight"), sizes.to_vec(), kind, vec![0x3c; bytes as usize]));
        }
        file
    }

    /// With one more key.
    pub fn with(mut self, key: &str, value: Vec<u8>) -> Gguf {
        self.keys.push((key.to_owned(), value));
        self
    }

    /// The file's bytes.
    pub fn bytes(&self) -> Vec<u8> {
        let mut file = b"GGUF".to_vec();
        file.extend(3u32.to_le_bytes());
        file.extend((self.tensors.len() as u64).to_le_bytes());
        file.extend((self.keys.len() as u64).to_le_bytes());
        for (key, value) in &self.keys {
            file.extend(text(key));
            file.extend(value);
        }
        let mut data = Vec::new();
        for (name, sizes, kind, bytes) in &self.tensors {
            file.extend(text(name));
            file.extend((sizes.len() as u32).to_le_bytes());
            sizes.iter().for_each(|size| file.extend(size.to_le_bytes()));
            file.extend(kind.to_le_bytes());
            file.extend((data.len() as u64).to_le_bytes());
            data.extend(bytes);
            data.resize(data.len().next_multiple_of(32), 0);
        }
        file.resize(file.len().next_multiple_of(32), 0);
        [file, data].concat()
    }
}
