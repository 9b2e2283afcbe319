//! What the naive references compute with: an array of f64, and random ones to begin from.

/// A dense, row-major array of f64.
#[derive(Clone, Debug, PartialEq)]
pub struct Array {
    /// The size of each dimension.
    pub shape: Vec<usize>,
    /// The elements, as many as the shape says.
    pub data: Vec<f64>,
}

impl Array {
    /// An array whose element at each index is `f` of it.
    pub fn from_fn(shape: &[usize], mut f: impl FnMut(&[usize]) -> f64) -> Array {
        let len: usize = shape.iter().product();
        let mut index = vec![0; shape.len()];
        let element = |_| {
            let element = f(&index);
            advance(&mut index, shape);
            element
        };
        Array { shape: shape.to_vec(), data: (0..len).map(element).collect() }
    }

    /// The element at an index of the same rank.
    pub fn at(&self, index: &[usize]) -> f64 {
        assert_eq!(index.len(), self.shape.len(), "an index of another rank");
        self.data[index.iter().zip(&self.shape).fold(0, |at, (i, size)| at * size + i)]
    }

    /// The element that broadcasting puts at an index of a larger shape.
    pub fn at_broadcast(&self, index: &[usize]) -> f64 {
        let own = index[index.len() - self.shape.len()..].iter().zip(&self.shape);
        self.data[own.fold(0, |at, (i, &size)| at * size + if size == 1 { 0 } else { *i })]
    }

    /// Each element changed by `f`.
    pub fn map(&self, f: impl FnMut(f64) -> f64) -> Array {
        Array { shape: self.shape.clone(), data: self.data.iter().copied().map(f).collect() }
    }

    /// The root mean square, 0 if empty.
    pub fn rms(&self) -> f64 {
        let squares: f64 = self.data.iter().map(|x| x * x).sum();
        (squares / self.data.len().max(1) as f64).sqrt()
    }
}

/// All indices of a shape, row by row.
pub fn indices(shape: &[usize]) -> Vec<Vec<usize>> {
    let len: usize = shape.iter().product();
    (0..len).map(|flat| index_of(flat, shape)).collect()
}

/// The index of an element by its place in memory.
pub(super) fn index_of(mut flat: usize, shape: &[usize]) -> Vec<usize> {
    let mut index = vec![0; shape.len()];
    for (i, size) in index.iter_mut().zip(shape).rev() {
        (*i, flat) = (flat % size, flat / size);
    }
    index
}

/// The next index, row by row; after the last, the first.
fn advance(index: &mut [usize], shape: &[usize]) {
    for (i, &size) in index.iter_mut().zip(shape).rev() {
        *i += 1;
        if *i < size {
            return;
        }
        *i = 0;
    }
}

/// An input of a case: its shape and where its values lie.
#[derive(Clone, Debug)]
pub struct Input {
    shape: Vec<usize>,
    values: Values,
}

/// Where random values lie.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Values {
    /// Between two numbers.
    Between(f64, f64),
    /// Of either sign, with a magnitude between two numbers: away from a kink or a pole at 0.
    Either(f64, f64),
    /// In a random order, at equal distances between -2 and 2: no two are almost equal.
    Distinct,
}

/// An input with values between -1 and 1.
pub fn input(shape: &[usize]) -> Input {
    input_of(shape, Values::Between(-1.0, 1.0))
}

/// An input with the given values.
pub fn input_of(shape: &[usize], values: Values) -> Input {
    Input { shape: shape.to_vec(), values }
}

/// A generator of random arrays (SplitMix64), independent of that of [`Tensor::randn`].
///
/// [`Tensor::randn`]: crate::Tensor::randn
pub struct Random(u64);

impl Random {
    /// A generator that is seeded by a name.
    pub fn named(name: &str) -> Random {
        // FNV-1a
        Random(name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
            (hash ^ byte as u64).wrapping_mul(0x0100_0000_01b3)
        }))
    }

    /// A number in [0, 1).
    pub fn unit(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }

    /// An array of the described values.
    pub fn draw(&mut self, input: &Input) -> Array {
        let len: usize = input.shape.iter().product();
        let data = match input.values {
            Values::Between(low, high) => {
                (0..len).map(|_| low + (high - low) * self.unit()).collect()
            }
            Values::Either(low, high) => (0..len)
                .map(|_| {
                    let sign = if self.unit() < 0.5 { -1.0 } else { 1.0 };
                    sign * (low + (high - low) * self.unit())
                })
                .collect(),
            Values::Distinct => {
                let step = 4.0 / len.max(1) as f64;
                let mut data: Vec<f64> = (0..len).map(|i| (i as f64 + 0.5) * step - 2.0).collect();
                for i in (1..len).rev() {
                    data.swap(i, (self.unit() * (i + 1) as f64) as usize);
                }
                data
            }
        };
        Array { shape: input.shape.clone(), data }
    }
}
