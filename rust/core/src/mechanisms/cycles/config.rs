//! The facts of stacks of layers that run in cycles.

use crate::config::Facts;

/// Two stacks of layers with a state each: in every cycle the low one runs `L_cycles` times, then the high one once; each
/// run starts from the sum of both states (hrm_text).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)] // fields with the names of their keys
pub struct Cycles {
    pub num_layers_per_stack: usize,
    pub l_cycles: usize,
}

/// One of the two stacks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Stack {
    High,
    Low,
}

impl Facts for Cycles {}

impl Cycles {
    /// Layers of one cycle of the high stack.
    pub fn layers_per_cycle(self) -> usize {
        self.num_layers_per_stack * (self.l_cycles + 1)
    }

    /// The stack that a layer is of.
    pub fn stack(self, layer: usize) -> Stack {
        match layer / self.num_layers_per_stack % (self.l_cycles + 1) == self.l_cycles {
            true => Stack::High,
            false => Stack::Low,
        }
    }

    /// The first layer with the same weights.
    pub fn first(self, layer: usize) -> usize {
        let number = layer % self.num_layers_per_stack;
        match self.stack(layer) {
            Stack::Low => number,
            Stack::High => self.num_layers_per_stack * self.l_cycles + number,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_of_both_stacks() {
        let cycles = Cycles { num_layers_per_stack: 2, l_cycles: 2 };
        assert_eq!(cycles.layers_per_cycle(), 6);
        let firsts: Vec<usize> = (0..12).map(|layer| cycles.first(layer)).collect();
        assert_eq!(firsts, [0, 1, 0, 1, 4, 5, 0, 1, 0, 1, 4, 5]);
        let high: Vec<usize> = (0..12).filter(|&layer| cycles.stack(layer) == Stack::High).collect();
        assert_eq!(high, [4, 5, 10, 11]);
    }
}
