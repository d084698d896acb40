//! Which sequences are in a step, and with how many rows.

use super::reuse::ReusableCache;
use super::sequence::Sequence;
use crate::config::Config;
use crate::kv_cache::BLOCK;
use ropechat_kernels::compute::progress::{Snapshot, Stage};
use ropechat_platform::error::Result;

/// Logit rows that exist at a time (law 2).
pub(super) const READOUT_ROWS: usize = 32;

/// Chooses at most `room` rows and reserves their positions: (index of the sequence, rows).
///
/// Single tokens come first, so that a long prompt never delays the sequences that are generating. Of prompts that
/// continue with the same block, the first is computed; the others wait for the next step and take the block from the
/// cache.
pub(super) fn schedule(
    sequences: &mut [(u64, Sequence)],
    config: &Config,
    cache: &mut ReusableCache,
    mut room: usize,
) -> Result<Vec<(usize, usize)>> {
    for i in 0..sequences.len() {
        let (before, rest) = sequences.split_at_mut(i);
        let Some(((_, sequence), after)) = rest.split_first_mut() else { break };
        let rope_variant = config.rope_variant(sequence.ids.len());
        if rope_variant != sequence.rope_variant && !sequence.finished {
            // RoPE depends on the length here: the cached keys have the rotation of another length.
            cache.restart(sequence, rope_variant);
        }
        if sequence.waiting() > 1 {
            cache.adopt(sequence, before.iter().chain(&*after).map(|(_, other)| other));
        }
    }
    let mut order: Vec<usize> = (0..sequences.len()).filter(|&i| !sequences[i].1.finished).collect();
    order.sort_by_key(|&i| sequences[i].1.reads_prompt());
    let mut due = Vec::new();
    for i in order {
        let waiting = sequences[i].1.waiting();
        let rows = match cache.kv.layout().recurrent.layers {
            0 => waiting.min(room),
            _ => rows_to_a_border(sequences[i].1.cache.len(), waiting, room),
        };
        if rows == 0 {
            break;
        }
        if waits(&sequences[i].1, sequences, &due) {
            continue;
        }
        cache.reserve(&mut sequences[i].1.cache, rows)?;
        due.push((i, rows));
        room -= rows;
    }
    Ok(due)
}

/// At most `room` rows, up to the last end of a block among them: there a recurrent state can be taken up again.
fn rows_to_a_border(cached: usize, waiting: usize, room: usize) -> usize {
    let rows = waiting.min(room);
    let border = (cached + rows) / BLOCK * BLOCK;
    if border > cached { border - cached } else { rows }
}

/// Whether this step computes the next block of a sequence for another one.
fn waits(sequence: &Sequence, sequences: &[(u64, Sequence)], due: &[(usize, usize)]) -> bool {
    let Some(tokens) = sequence.unread().first_chunk::<BLOCK>() else { return false };
    let start = sequence.place.blocks() * BLOCK;
    due.iter().any(|&(i, rows)| {
        let leader = &sequences[i].1;
        leader.place.is_at(&sequence.place)
            && leader.cache.len() + rows >= start + BLOCK
            && leader.ids[start..start + BLOCK] == *tokens
    })
}

/// How much of the prompts is read, in tokens.
pub(super) fn prompts_read(sequences: &[(u64, Sequence)]) -> Snapshot {
    let (mut done, mut total) = (0, 0);
    for (_, sequence) in sequences {
        let rows = sequence.goal.rows(sequence.prompt_len);
        done += sequence.cache.len().min(rows) as u64;
        total += rows as u64;
    }
    Snapshot { stage: Stage::Reading, done, total }
}

/// Rows of a step that belong to prompts.
pub(super) fn prompt_rows(sequences: &[(u64, Sequence)], due: &[(usize, usize)]) -> usize {
    due.iter().filter(|&&(i, _)| sequences[i].1.reads_prompt()).map(|&(_, rows)| rows).sum()
}

/// Rows of a step.
pub(super) fn all_rows(due: &[(usize, usize)]) -> usize {
    due.iter().map(|&(_, rows)| rows).sum()
}

/// The rows of a step whose logits are read out: (row, index of its sequence, position).
pub(super) fn readout_rows(
    sequences: &[(u64, Sequence)],
    due: &[(usize, usize)],
) -> Vec<(usize, usize, usize)> {
    let (mut wanted, mut row) = (Vec::new(), 0);
    for &(index, rows) in due {
        let sequence = &sequences[index].1;
        let start = sequence.cache.len();
        let first = sequence.goal.first_row(sequence.last() + 1).clamp(start, start + rows);
        wanted.extend((first..start + rows).map(|position| (row + position - start, index, position)));
        row += rows;
    }
    wanted
}
