//! A small fully connected network with its gradient and Adam, in plain Rust: what the demo's policy is made of.

use rand::Rng;

/// Adam's usual constants (Kingma and Ba, arXiv:1412.6980).
const BETA: (f32, f32) = (0.9, 0.999);
const EPSILON: f32 = 1e-8;

/// Layers of `weights · x + bias`, with tanh between them.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Mlp {
    sizes: Vec<usize>,
    /// Layer by layer: the rows of the weights, then the biases.
    pub(crate) values: Vec<f32>,
}

/// What a forward pass leaves for the gradient.
#[derive(Clone, Debug, Default)]
pub(crate) struct Trace {
    activations: Vec<Vec<f32>>,
}

impl Mlp {
    /// With random weights.
    pub(crate) fn random(sizes: &[usize], rng: &mut impl Rng) -> Self {
        let mut values = Vec::new();
        for pair in sizes.windows(2) {
            let scale = (1.0 / pair[0] as f32).sqrt();
            values.extend((0..pair[0] * pair[1]).map(|_| rng.random_range(-scale..scale)));
            values.extend(std::iter::repeat_n(0.0, pair[1]));
        }
        Self {
            sizes: sizes.to_vec(),
            values,
        }
    }

    /// Takes other weights of the same shape in; others change nothing.
    pub(crate) fn load(&mut self, values: &[f32]) {
        if values.len() == self.values.len() {
            self.values.copy_from_slice(values);
        }
    }

    /// The output for an input.
    pub(crate) fn forward<'a>(&self, input: &[f32], trace: &'a mut Trace) -> &'a [f32] {
        let layers = self.sizes.len() - 1;
        trace.activations.resize_with(layers + 1, Vec::new);
        trace.activations[0].clear();
        trace.activations[0].extend_from_slice(input);
        let mut at = 0;
        for layer in 0..layers {
            let (rows, columns) = (self.sizes[layer + 1], self.sizes[layer]);
            let (weights, rest) = self.values[at..].split_at(rows * columns);
            let (before, after) = trace.activations.split_at_mut(layer + 1);
            let out = &mut after[0];
            out.clear();
            out.extend(
                weights
                    .chunks_exact(columns)
                    .zip(&rest[..rows])
                    .map(|(row, bias)| {
                        let sum = dot(row, &before[layer]) + bias;
                        if layer + 1 < layers { sum.tanh() } else { sum }
                    }),
            );
            at += rows * (columns + 1);
        }
        &trace.activations[layers]
    }

    /// Adds the gradient of a loss to `gradient`, given the loss's gradient at the output.
    pub(crate) fn backward(&self, trace: &Trace, output: &[f32], gradient: &mut [f32]) {
        let layers = self.sizes.len() - 1;
        let mut at = self.values.len();
        let mut delta = output.to_vec();
        for layer in (0..layers).rev() {
            let (rows, columns) = (self.sizes[layer + 1], self.sizes[layer]);
            at -= rows * (columns + 1);
            let input = &trace.activations[layer];
            let weights = &self.values[at..at + rows * columns];
            let mut below = vec![0.0; columns];
            for (row, d) in delta.iter().enumerate() {
                let place = at + row * columns;
                add_scaled(&mut gradient[place..place + columns], input, *d);
                add_scaled(&mut below, &weights[row * columns..][..columns], *d);
                gradient[at + rows * columns + row] += d;
            }
            for (b, x) in below.iter_mut().zip(input) {
                *b *= 1.0 - x * x;
            }
            delta = below;
        }
    }
}

fn dot(a: &[f32], b: &[f32]) -> f32 {
    // Four sums side by side, so that the compiler may use vector instructions.
    let mut sums = [0.0_f32; 4];
    let (a4, b4) = (a.chunks_exact(4), b.chunks_exact(4));
    let rest: f32 = a4
        .remainder()
        .iter()
        .zip(b4.remainder())
        .map(|(x, y)| x * y)
        .sum();
    for (x, y) in a4.zip(b4) {
        for lane in 0..4 {
            sums[lane] += x[lane] * y[lane];
        }
    }
    sums.iter().sum::<f32>() + rest
}

fn add_scaled(to: &mut [f32], from: &[f32], factor: f32) {
    for (t, f) in to.iter_mut().zip(from) {
        *t += f * factor;
    }
}

/// Adam's moments.
#[derive(Clone, Debug)]
pub(crate) struct Adam {
    rate: f32,
    steps: i32,
    moments: Vec<(f32, f32)>,
}

impl Adam {
    /// For so many values.
    pub(crate) fn new(values: usize, rate: f32) -> Self {
        Self {
            rate,
            steps: 0,
            moments: vec![(0.0, 0.0); values],
        }
    }

    /// One step down the gradient.
    pub(crate) fn step(&mut self, values: &mut [f32], gradient: &[f32]) {
        self.steps = self.steps.saturating_add(1);
        let unbiased = |beta: f32| 1.0 - beta.powi(self.steps);
        let (first, second) = (unbiased(BETA.0), unbiased(BETA.1));
        for ((value, g), (m, v)) in values.iter_mut().zip(gradient).zip(&mut self.moments) {
            *m = BETA.0 * *m + (1.0 - BETA.0) * g;
            *v = BETA.1 * *v + (1.0 - BETA.1) * g * g;
            *value -= self.rate * (*m / first) / ((*v / second).sqrt() + EPSILON);
        }
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;
    use rand::rngs::SmallRng;

    use super::*;

    fn loss(net: &Mlp, input: &[f32], target: &[f32]) -> f32 {
        let mut trace = Trace::default();
        let out = net.forward(input, &mut trace);
        out.iter()
            .zip(target)
            .map(|(o, t)| (o - t) * (o - t) / 2.0)
            .sum()
    }

    #[test]
    fn the_gradient_is_the_slope() {
        let mut rng = SmallRng::seed_from_u64(3);
        let mut net = Mlp::random(&[5, 7, 3], &mut rng);
        let (input, target) = ([0.3, -0.7, 0.1, 0.9, -0.2], [0.5, -0.5, 0.2]);
        let mut trace = Trace::default();
        let out = net.forward(&input, &mut trace);
        let error: Vec<f32> = out.iter().zip(target).map(|(o, t)| o - t).collect();
        let mut gradient = vec![0.0; net.values.len()];
        net.backward(&trace, &error, &mut gradient);
        for (at, expected) in gradient.iter().enumerate() {
            const H: f32 = 1e-2;
            let kept = net.values[at];
            net.values[at] = kept + H;
            let up = loss(&net, &input, &target);
            net.values[at] = kept - H;
            let down = loss(&net, &input, &target);
            net.values[at] = kept;
            let slope = (up - down) / (2.0 * H);
            assert!(
                (slope - expected).abs() < 2e-3,
                "value {at}: {slope} is not {}",
                expected
            );
        }
    }

    #[test]
    fn adam_learns_a_function() {
        let mut rng = SmallRng::seed_from_u64(1);
        let mut net = Mlp::random(&[2, 24, 1], &mut rng);
        let mut adam = Adam::new(net.values.len(), 1e-2);
        let mut trace = Trace::default();
        let before = loss(&net, &[0.5, -0.5], &[-0.25]);
        for _ in 0..1_500 {
            let mut gradient = vec![0.0; net.values.len()];
            for _ in 0..8 {
                let x = [rng.random_range(-1.0..1.0), rng.random_range(-1.0_f32..1.0)];
                let error = net.forward(&x, &mut trace)[0] - x[0] * x[1];
                net.backward(&trace, &[error / 8.0], &mut gradient);
            }
            adam.step(&mut net.values, &gradient);
        }
        let after = loss(&net, &[0.5, -0.5], &[-0.25]);
        assert!(after < 0.005 && after < before, "{before} then {after}");
    }
}
