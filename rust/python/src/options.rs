//! Options of `Engine.load`, checked.

use ropechat_core::config::Config;
use ropechat_core::engine::{Context, Speculative};
use ropechat_kernels::compute::pool::Pool;
use ropechat_kernels::quant::PackedType;
use ropechat_platform::cores::{fastest_cores, physical_cores};
use ropechat_platform::error::Error;

/// Most tokens of a sequence unless the caller asks for more or less: the KV cache grows no further.
const DEFAULT_CONTEXT: usize = 8192;

pub(super) fn parse_dtype(name: &str) -> Result<Option<PackedType>, Error> {
    let choices: Vec<_> = PackedType::ALL.into_iter().filter(|dtype| dtype.is_choice()).collect();
    let found = choices.iter().copied().find(|dtype| dtype.name() == name);
    if found.is_none() && name != "auto" {
        let names: Vec<_> = choices.iter().map(|dtype| dtype.name()).collect();
        let (last, others) = names.split_last().expect("there are types");
        let others = others.join(", ");
        return Err(Error::Request(format!("dtype: must be auto, {others} or {last} (got {name:?})")));
    }
    Ok(found)
}

pub(super) fn parse_kv_dtype(name: &str) -> Result<Option<PackedType>, Error> {
    match name {
        "auto" => Ok(None),
        "f32" => Ok(Some(PackedType::F32)),
        "f16" => Ok(Some(PackedType::F16)),
        "bf16" => Ok(Some(PackedType::BF16)),
        "q8_0" => Ok(Some(PackedType::Q8_0)),
        _ => Err(Error::Request(format!("kv_dtype: must be auto, f32, f16, bf16 or q8_0 (got {name:?})"))),
    }
}

pub(super) fn parse_speculative(name: &str) -> Result<Speculative, Error> {
    match name {
        "auto" => Ok(Speculative::Auto),
        "off" => Ok(Speculative::Off),
        "always" => Ok(Speculative::Always),
        _ => Err(Error::Request(format!("speculative: must be auto, off or always (got {name:?})"))),
    }
}

pub(super) fn thread_count(threads: Option<usize>) -> Result<usize, Error> {
    match threads {
        Some(n @ 1..=1024) => Ok(n),
        Some(n) => Err(Error::Request(format!("threads: must be 1 to 1024 (got {n})"))),
        None => Ok(physical_cores()),
    }
}

/// Threads that stay on the fastest cores, if the environment variable `ROPECHAT_PIN` is 1 and the system says which there are.
pub(super) fn new_pool(threads: usize) -> Pool {
    let is_wanted = std::env::var_os("ROPECHAT_PIN").is_some_and(|value| value == "1");
    match &fastest_cores()[..] {
        cores if is_wanted && !cores.is_empty() => Pool::pinned(threads, cores),
        _ => Pool::new(threads),
    }
}

pub(super) fn context_size(context: Option<usize>, config: &Config) -> Result<Context, Error> {
    match context {
        // The upper limit depends on the memory that is available: `fit` checks it.
        Some(n @ 2..) => Ok(Context::Stated(n)),
        Some(n) => Err(Error::Request(format!("context: must be at least 2 tokens (got {n})"))),
        None => Ok(Context::Trained(config.usable_length().min(DEFAULT_CONTEXT))),
    }
}

/// A note on a stated context that exceeds what the model was trained for.
pub(super) fn context_note(context: Context, config: &Config) -> Option<String> {
    let (tokens, trained) = (context.tokens(), config.usable_length());
    (tokens > trained).then(|| {
        format!("context: {tokens} tokens, but the model was trained for {trained}; beyond them answers are unreliable")
    })
}
