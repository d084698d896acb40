//! The specs of AltUp and LAuReL.

use super::config::AltUp;
use super::parts::{InLayer, Outside};
use crate::config::{Bias, Stored};
use crate::family::tensors::{Build, Prefix};
use crate::parts::{MatrixSpec, Rows, Spec, TensorRows};

impl Build for AltUp {
    type InLayer = InLayer<Spec>;
    type Outside = Outside<Spec>;

    fn in_layer(&self, at: &Prefix<'_>) -> Option<InLayer<Spec>> {
        let (inputs, rank, names) = (self.altup_num_inputs, self.laurel_rank, &self.names);
        let hidden = at.config.hidden_size;
        let width = hidden as f32;
        Some(InLayer {
            router_norm: at.norm(names.router_norm, hidden).prepared(move |weight| weight / width),
            modality_router: at.table(names.modality_router, inputs, hidden),
            prediction_coefs: at.table(names.prediction_coefs, inputs * inputs, inputs),
            correction_coefs: at.table(names.correction_coefs, inputs, inputs),
            correct_output_scale: at.numbers(names.correct_output_scale, Rows::all(hidden)),
            laurel_left: at.matrix(&[(names.laurel_left, rank)], hidden, Bias::None),
            laurel_right: at.matrix(&[(names.laurel_right, hidden)], rank, Bias::None),
            laurel_norm: at.norm(names.laurel_norm, hidden),
        })
    }

    fn outside(&self, at: &Prefix<'_>) -> Option<Outside<Spec>> {
        let (others, hidden) = (self.altup_num_inputs - 1, at.config.hidden_size);
        let projections = self.names.projections.map(|name| {
            let of_number = |number: usize| {
                let own = at.name(&name.replace("{}", &number.to_string()));
                let mut square = TensorRows::whole(own, Stored::OutIn, hidden, hidden);
                if !name.contains("{}") {
                    square.shape = vec![others, hidden, hidden];
                    square.rows = square.rows.from(number * hidden);
                }
                MatrixSpec::stacked(vec![square], Vec::new(), hidden)
            };
            (0..others).map(of_number).collect()
        });
        Some(Outside { projections })
    }
}
