//! First guesses where nothing was measured: batch sizes and stages by a model's size, and the batch that fits a GPU.
//!
//! Rules of thumb from a reader's summary of RLinf, not from its paper or its code, and never a measurement: whoever shows
//! one says so with [`Guess::words`]. A single trial outweighs them.
use alloc::format;
use alloc::string::String;

use crate::unit::Bytes;

/// What is usual for models of a size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Guess {
    /// The size class in words.
    pub class: &'static str,
    /// GPUs, least and most; most is none where the rule has no end.
    pub gpus: (u32, Option<u32>),
    /// Batch size, least and most.
    pub batch: (u32, u32),
    /// Pipeline stages.
    pub stages: u32,
    /// Whether the model's size lies between the classes of the table, so that this is only the nearest.
    pub between: bool,
}

const BILLION: u64 = 1_000_000_000;
const SMALL: Guess = Guess {
    class: "under 3B parameters",
    gpus: (4, Some(8)),
    batch: (32, 64),
    stages: 2,
    between: false,
};
const MIDDLE: Guess = Guess {
    class: "7B to 13B parameters",
    gpus: (8, Some(16)),
    batch: (16, 32),
    stages: 3,
    between: false,
};
const LARGE: Guess = Guess {
    class: "over 30B parameters",
    gpus: (32, None),
    batch: (8, 16),
    stages: 4,
    between: false,
};

impl Guess {
    /// The guess for a model with so many parameters. Between two classes the larger one's: its batch fits.
    pub const fn of_size(parameters: u64) -> Self {
        let (mut guess, between) = if parameters < 3 * BILLION {
            (SMALL, false)
        } else if parameters <= 13 * BILLION {
            (MIDDLE, parameters < 7 * BILLION)
        } else {
            (LARGE, parameters <= 30 * BILLION)
        };
        guess.between = between;
        guess
    }

    /// The guess as a sentence that says that it is one.
    pub fn words(&self) -> String {
        let gpus = match self.gpus {
            (least, Some(most)) => format!("{least} to {most} GPUs"),
            (least, None) => format!("{least} GPUs or more"),
        };
        let nearest = if self.between { "nearest class: " } else { "" };
        format!(
            "a guess, not a measurement ({nearest}{}): {gpus}, batch {} to {}, {} pipeline stages",
            self.class, self.batch.0, self.batch.1, self.stages
        )
    }
}

/// Share of the memory left beside the parameters that a batch should take, in tenths: gradients, optimizer states and
/// the allocator's slack take the rest.
const BATCH_TENTHS: u64 = 3;

/// The batch size to try first: `0.3 · (GPU memory − parameters) / memory of a sample`, at least 1. None: the parameters
/// do not fit, or a sample's memory is not known. A guess.
pub fn batch_for(gpu: Bytes, parameters: Bytes, sample: Bytes) -> Option<u32> {
    let left = gpu.0.checked_sub(parameters.0)?;
    let fit = u128::from(left) * u128::from(BATCH_TENTHS) / 10;
    let batch = fit.checked_div(u128::from(sample.0))?;
    Some(u32::try_from(batch).unwrap_or(u32::MAX).max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_read_by_size_and_says_that_it_guesses() {
        for (billions, batch, gpus, stages, between) in [
            (1, (32, 64), (4, Some(8)), 2, false),
            (3, (16, 32), (8, Some(16)), 3, true),
            (7, (16, 32), (8, Some(16)), 3, false),
            (13, (16, 32), (8, Some(16)), 3, false),
            (20, (8, 16), (32, None), 4, true),
            (70, (8, 16), (32, None), 4, false),
        ] {
            let guess = Guess::of_size(billions * BILLION);
            let got = (guess.batch, guess.gpus, guess.stages, guess.between);
            assert_eq!(got, (batch, gpus, stages, between), "{billions}B");
            assert!(guess.words().starts_with("a guess, not a measurement"));
        }
    }

    #[test]
    fn a_batch_takes_three_tenths_of_what_the_parameters_leave() {
        let gib = Bytes::gib;
        assert_eq!(batch_for(gib(80), gib(14), gib(1)), Some(19));
        assert_eq!(batch_for(gib(16), gib(14), gib(2)), Some(1));
        assert_eq!(batch_for(gib(16), gib(20), gib(1)), None);
        assert_eq!(batch_for(gib(16), gib(2), Bytes(0)), None);
    }
}
