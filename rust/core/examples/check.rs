//! `check <model folder>`: reads and checks everything about a model but its numbers, and prints one line.
//!
//! Exit codes: 0 sound, 2 refused, 4 model not found, 70 a bug, 74 I/O, as every command of ropechat.

use std::path::Path;
use std::process::ExitCode;

use ropechat_core::checkpoint::Checkpoint;
use ropechat_core::{Error, Result, family};

fn check(dir: &Path) -> Result<String> {
    let checkpoint = Checkpoint::open(dir)?;
    let card = family::model_card(&checkpoint)?;
    family::check_tensors(&checkpoint, &card.config)?;
    for warning in card.warnings.iter().chain(checkpoint.warnings()) {
        eprintln!("warning: {warning}");
    }
    let config = &card.config;
    let tensors = checkpoint.names().count();
    Ok(format!(
        "{}: {} of {} layers, {tensors} tensors",
        dir.display(),
        config.model_type,
        config.layers.len()
    ))
}

fn main() -> ExitCode {
    let Some(dir) = std::env::args_os().nth(1) else {
        eprintln!("usage: check <model folder>");
        return ExitCode::from(2);
    };
    match check(Path::new(&dir)) {
        Ok(line) => {
            println!("{line}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(match error {
                Error::NotFound { .. } => 4,
                Error::Io { .. } => 74,
                Error::Internal(_) => 70,
                _ => 2,
            })
        }
    }
}
