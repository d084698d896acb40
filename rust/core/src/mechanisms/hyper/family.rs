//! The specs of hyper-connections.

use super::config::{HyperConnections, HyperNames, StreamWeights};
use super::parts::{HyperConnection, InLayer, LowRank, Outside, Sigmoid};
use crate::config::Bias;
use crate::family::tensors::{Build, Prefix};
use crate::parts::{Rows, Spec};

impl Build for HyperConnections {
    type InLayer = InLayer<Spec>;
    type Outside = Outside<Spec>;

    fn in_layer(&self, at: &Prefix<'_>) -> Option<InLayer<Spec>> {
        let [attention, mlp, _] = self.names;
        Some(InLayer { branches: [attention, mlp].map(|names| self.connection(at, names, false)) })
    }

    fn outside(&self, at: &Prefix<'_>) -> Option<Outside<Spec>> {
        Some(Outside { head: self.connection(at, self.names[2], true) })
    }
}

impl HyperConnections {
    /// A hyper-connection, which only reads where `is_head`.
    fn connection(&self, at: &Prefix<'_>, names: HyperNames, is_head: bool) -> HyperConnection<Spec> {
        let mixes = matches!(self.weights, StreamWeights::Sinkhorn { .. });
        let (streams, kinds) = (self.hc_mult, if is_head { 1 } else { 2 + usize::from(mixes) });
        // The third kind is a matrix.
        let rows = if kinds > 2 { streams * (2 + streams) } else { streams * kinds };
        let width = streams * at.config.hidden_size;
        match (names, self.weights) {
            (HyperNames::Sigmoid([matrix, base, scale]), _) => HyperConnection::Sigmoid(Sigmoid {
                matrix: at.table(matrix, rows, width),
                base: at.numbers(base, Rows::all(rows)),
                scale: at.numbers(scale, Rows::all(kinds)),
            }),
            (HyperNames::LowRank([norm, down, up, written]), weights) => {
                let rank = match weights {
                    StreamWeights::LowRank { hc_lowrank } => hc_lowrank,
                    StreamWeights::Sigmoid { .. } | StreamWeights::Sinkhorn { .. } => 0,
                };
                let parts = [(down, rank), (written, streams)];
                HyperConnection::LowRank(LowRank {
                    norm: at.norm(norm, width),
                    down: at.matrix(&parts[..kinds], width, Bias::None),
                    up: at.matrix(&[(up, width)], rank, Bias::None),
                })
            }
        }
    }
}
