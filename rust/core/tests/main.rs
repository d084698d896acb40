//! The tests of whole models and of files, as one program: a file each.

mod common;
mod containers;

mod checkpoint;
mod config;
mod family_laws;
mod fit;
mod gguf;
mod kv_file;
mod laws;
mod layers;
mod nan;
mod pack_cache;
mod prefixes;
mod quantized;
mod rope;
mod safetensors;
mod tensor_types;
