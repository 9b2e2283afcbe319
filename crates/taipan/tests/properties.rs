//! What holds for every shape, type and value; and what random tensors are like.

use half::{bf16, f16};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use taipan::check::naive::{self, Layout};
use taipan::check::{Array, FLOATS, Random, array, input, round, tensor, tolerance};
use taipan::{Activation, DType, Device, Element, Result, Tensor, Weight, concat, linear};

const CPU: Device = Device::Cpu;

/// 64 cases of each property, the same ones every time.
fn config() -> ProptestConfig {
    use proptest::test_runner::{RngAlgorithm, RngSeed};
    ProptestConfig {
        cases: 64,
        failure_persistence: None,
        rng_algorithm: RngAlgorithm::ChaCha,
        rng_seed: RngSeed::Fixed(1),
        ..ProptestConfig::default()
    }
}

/// A float type.
fn float() -> impl Strategy<Value = DType> {
    select(&FLOATS[..])
}

/// A shape of up to four dimensions.
fn shape() -> impl Strategy<Value = Vec<usize>> {
    vec(0..6usize, 0..5)
}

/// A shape of one dimension or more, and one of its dimensions.
fn shape_and_dim() -> impl Strategy<Value = (Vec<usize>, usize)> {
    vec(0..6usize, 1..5).prop_flat_map(|shape| {
        let dim = 0..shape.len();
        (Just(shape), dim)
    })
}

/// Random numbers of a type, between -1 and 1.
fn draw(seed: u64, shape: &[usize], dtype: DType) -> Array {
    Random::named(&seed.to_string()).draw(&input(shape)).map(|x| round(x, dtype))
}

/// A method of two tensors.
type Operation = fn(&Tensor, &Tensor) -> Result<Tensor>;

/// Compare with a sum of so many terms of about 1 each.
fn close(
    got: &Array,
    want: &Array,
    dtype: DType,
    terms: usize,
) -> std::result::Result<(), TestCaseError> {
    let t = tolerance(dtype);
    prop_assert_eq!(&got.shape, &want.shape);
    for (i, (got, want)) in got.data.iter().zip(&want.data).enumerate() {
        let within = t.value * want.abs() + t.cancelled * terms as f64 + t.tiny;
        prop_assert!(
            (got - want).abs() <= within,
            "{dtype}, element {i}: got {got:e}, want {want:e}, tolerance {within:e}"
        );
    }
    Ok(())
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn linear_is_the_naive_one(
        (lead, m, k, n) in (vec(0..4usize, 0..3), 0..40usize, 0..70usize, 0..40usize),
        (nk, per_entry, has_bias) in any::<(bool, bool, bool)>(),
        activation in select(Activation::ALL),
        dtype in float(),
        seed in any::<u64>(),
    ) {
        let layout = if nk { Layout::Nk } else { Layout::Kn };
        let matrix = if nk { [n, k] } else { [k, n] };
        let w_lead = if per_entry { &lead[..] } else { &[] };
        let x = draw(seed, &[&lead[..], &[m, k]].concat(), dtype);
        let w = draw(seed ^ 1, &[w_lead, &matrix].concat(), dtype);
        let bias = has_bias.then(|| draw(seed ^ 2, &[n], dtype));
        let want = naive::linear(&x, &w, bias.as_ref(), layout, activation);
        let [x, w] = [&x, &w].map(|a| tensor(a, dtype, &CPU));
        let bias = bias.map(|bias| tensor(&bias, dtype, &CPU));
        let w = if nk { Weight::nk(&w) } else { Weight::kn(&w) };
        let got = linear(&x, w, bias.as_ref(), activation).unwrap();
        close(&array(&got), &want, dtype, k + 8)?;
    }

    /// Two shapes that broadcast: one, and another with some sizes 1 and some in front left out.
    #[test]
    fn arithmetic_is_the_naive_one(
        whole in shape(),
        ones in vec(any::<(bool, bool)>(), 4),
        cut in 0..5usize,
        op in 0..4usize,
        dtype in float(),
        seed in any::<u64>(),
    ) {
        let part = |side: fn(&(bool, bool)) -> bool| -> Vec<usize> {
            whole.iter().zip(&ones).map(|(&n, ones)| if side(ones) { 1 } else { n }).collect()
        };
        let a = draw(seed, &part(|ones| ones.0), dtype);
        let b = part(|ones| ones.1 && !ones.0);
        let b = draw(seed ^ 1, &b[cut.min(b.len())..], dtype);
        let b = b.map(|x| round(x + 1.5f64.copysign(x), dtype)); // away from 0
        let (call, math): (Operation, fn(f64, f64) -> f64) = match op {
            0 => (Tensor::add, |a, b| a + b),
            1 => (Tensor::sub, |a, b| a - b),
            2 => (Tensor::mul, |a, b| a * b),
            _ => (Tensor::div, |a, b| a / b),
        };
        let want = naive::binary(&a, &b, math);
        let got = call(&tensor(&a, dtype, &CPU), &tensor(&b, dtype, &CPU)).unwrap();
        close(&array(&got), &want, dtype, 0)?;
        let got = call(&tensor(&b, dtype, &CPU), &tensor(&b, dtype, &CPU)).unwrap();
        close(&array(&got), &b.map(|b| math(b, b)), dtype, 0)?;
    }

    #[test]
    fn reductions_are_the_naive_ones(
        shape in shape(),
        chosen in vec(any::<bool>(), 4),
        dtype in float(),
        seed in any::<u64>(),
    ) {
        let dims: Vec<usize> = (0..shape.len()).filter(|&d| chosen[d]).collect();
        let x = draw(seed, &shape, dtype);
        let t = tensor(&x, dtype, &CPU);
        let count: usize = dims.iter().map(|&d| shape[d]).product();
        let sum = t.sum_dims(&dims).unwrap();
        close(&array(&sum), &naive::reduce(&x, &dims, naive::sum), dtype, count)?;
        if count > 0 {
            let mean = t.mean_dims(&dims).unwrap();
            close(&array(&mean), &naive::reduce(&x, &dims, naive::mean), dtype, 1)?;
            let max = t.max_dims(&dims).unwrap();
            prop_assert_eq!(array(&max), naive::reduce(&x, &dims, naive::max));
        } else {
            prop_assert!(t.max_dims(&dims).is_err());
        }
    }

    #[test]
    fn softmax_sums_to_1((shape, dim) in shape_and_dim(), dtype in float(), seed in any::<u64>()) {
        let x = draw(seed, &shape, dtype);
        let got = array(&tensor(&x, dtype, &CPU).softmax(dim).unwrap());
        close(&got, &naive::softmax(&x, dim), dtype, 0)?;
        let u = tolerance(dtype).value;
        for sum in naive::reduce(&got, &[dim], naive::sum).data {
            prop_assert!((sum - 1.0).abs() <= 2.0 * u || shape[dim] == 0, "{sum}");
        }
    }

    #[test]
    fn slices_joined_are_the_whole(
        (shape, dim) in shape_and_dim(),
        cuts in vec(0.0..1.0f64, 0..4),
        dtype in select(&[DType::F16, DType::F64, DType::U32, DType::I64][..]),
        seed in any::<u64>(),
    ) {
        let x = draw(seed, &shape, DType::F64).map(|x| (x * 100.0).abs().round());
        let x = tensor(&x, dtype, &CPU);
        let mut at: Vec<usize> = cuts.iter().map(|c| (c * shape[dim] as f64) as usize).collect();
        at.extend([0, shape[dim]]);
        at.sort_unstable();
        let parts: Vec<Tensor> =
            at.windows(2).map(|w| x.slice(dim, w[0]..w[1]).unwrap()).collect();
        let whole = concat(&parts.iter().collect::<Vec<_>>(), dim).unwrap();
        prop_assert_eq!(array(&whole), array(&x));
    }

    #[test]
    fn transposed_twice_is_itself(
        (shape, a) in shape_and_dim(),
        b in 0..4usize,
        dtype in float(),
        seed in any::<u64>(),
    ) {
        let b = b % shape.len();
        let x = draw(seed, &shape, dtype);
        let once = tensor(&x, dtype, &CPU).transpose(a, b).unwrap();
        let mut exchanged = shape.clone();
        exchanged.swap(a, b);
        prop_assert_eq!(once.shape(), &exchanged[..]);
        prop_assert_eq!(array(&once.transpose(a, b).unwrap()), x);
    }

    #[test]
    fn reshaped_has_the_same_elements(shape in shape(), dtype in float(), seed in any::<u64>()) {
        let x = draw(seed, &shape, dtype);
        let flat = tensor(&x, dtype, &CPU).reshape(&[x.data.len()]).unwrap();
        prop_assert_eq!(&array(&flat).data, &x.data);
        prop_assert_eq!(array(&flat.reshape(&shape).unwrap()), x);
    }

    /// To a wider type and back nothing is lost.
    #[test]
    fn cast_and_back_is_itself(bits in vec(any::<u16>(), 1..50), wide in 0..2usize) {
        fn round_trip<T: Element>(values: Vec<T>, wide: DType) -> std::result::Result<(), TestCaseError> {
            let finite = |x: &T| x.to_f64().is_finite();
            let values: Vec<T> = values.into_iter().filter(finite).collect();
            let x = Tensor::new(&values, &[values.len()], &CPU).unwrap();
            let back = x.cast(wide).unwrap().cast(T::DTYPE).unwrap();
            prop_assert_eq!(back.read_blocking::<T>().unwrap(), values);
            Ok(())
        }
        let wide = [DType::F32, DType::F64][wide];
        round_trip(bits.iter().map(|&b| f16::from_bits(b)).collect(), wide)?;
        round_trip(bits.iter().map(|&b| bf16::from_bits(b)).collect(), wide)?;
        let f32s = bits.iter().map(|&b| f32::from_bits((b as u32) << 16 | 0x1234 ^ b as u32));
        round_trip(f32s.collect(), DType::F64)?;
        round_trip(bits.iter().map(|&b| (b as u32) << 16 | 1).collect(), DType::F64)?;
        round_trip(bits.iter().map(|&b| (b as u32) << 16 | 1).collect(), DType::I64)?;
    }

    /// Element `i` depends on the seed and `i` alone; seeds differ.
    #[test]
    fn random_tensors_are_those_of_their_seed(seed in any::<u64>(), n in 2..100usize) {
        for make in [Tensor::rand, Tensor::randn] {
            let long = array(&make(&[n], seed, DType::F32, &CPU).unwrap()).data;
            let short = array(&make(&[n / 2], seed, DType::F32, &CPU).unwrap()).data;
            prop_assert_eq!(&long[..n / 2], &short[..]);
            let other = array(&make(&[n], seed ^ 1, DType::F32, &CPU).unwrap()).data;
            prop_assert_ne!(long, other);
        }
    }
}

/// Mean, variance, skewness and kurtosis.
fn moments(x: &[f64]) -> [f64; 4] {
    let mean = naive::mean(x);
    let central = |p: i32| naive::mean(&x.iter().map(|x| (x - mean).powi(p)).collect::<Vec<_>>());
    let variance = central(2);
    [mean, variance, central(3) / variance.powf(1.5), central(4) / variance.powi(2)]
}

#[test]
fn moments_are_those_of_the_distribution() -> Result<()> {
    // With n numbers each moment is off by about a few times 1/√n.
    const N: usize = 200_000;
    for dtype in FLOATS {
        for seed in [0, 1, u64::MAX] {
            let near = |got: [f64; 4], want: [f64; 4], slack: f64| {
                for (got, want) in got.into_iter().zip(want) {
                    assert!(
                        (got - want).abs() < 0.03 + slack,
                        "{got} is not near {want} in {dtype}"
                    );
                }
            };
            let uniform = array(&Tensor::rand(&[N], seed, dtype, &CPU)?).data;
            near(moments(&uniform), [0.5, 1.0 / 12.0, 0.0, 1.8], 0.0);
            assert!((naive::mean(&uniform) - 0.5).abs() < 0.005, "in {dtype}");
            assert!(uniform.iter().all(|x| (0.0..1.0).contains(x)), "in {dtype}");
            let normal = array(&Tensor::randn(&[N], seed, dtype, &CPU)?).data;
            near(moments(&normal), [0.0, 1.0, 0.0, 3.0], 0.02);
            assert!((naive::mean(&normal)).abs() < 0.01, "in {dtype}");
        }
    }
    Ok(())
}

/// Neighbours, and elements of neighbouring seeds, have nothing to do with one another.
#[test]
fn random_numbers_are_not_correlated() -> Result<()> {
    const N: usize = 100_000;
    let x = array(&Tensor::randn(&[N], 7, DType::F64, &CPU)?).data;
    let y = array(&Tensor::randn(&[N], 8, DType::F64, &CPU)?).data;
    let product = |a: &[f64], b: &[f64]| {
        naive::mean(&a.iter().zip(b).map(|(a, b)| a * b).collect::<Vec<_>>())
    };
    for (name, correlation) in [
        ("neighbours", product(&x[1..], &x)),
        ("two apart", product(&x[2..], &x)),
        ("seeds", product(&x, &y)),
        ("seeds, shifted", product(&x[1..], &y)),
        ("squares of neighbours", {
            let square = |x: &[f64]| x.iter().map(|x| x * x - 1.0).collect::<Vec<_>>();
            product(&square(&x[1..]), &square(&x))
        }),
    ] {
        assert!(correlation.abs() < 0.02, "{name}: {correlation}");
    }
    Ok(())
}

/// The same on every platform: the first four numbers of some seeds, to the last bit.
#[test]
fn seeds_give_these_numbers() -> Result<()> {
    let uniform: [(u64, [f64; 4]); 4] = [
        (0, [0.6524484863740322, 0.7012121095215252, 0.3871241409757855, 0.656413707073071]),
        (1, [0.36818951565166946, 0.9435642308648544, 0.04525699773739167, 0.7774369184800852]),
        (42, [0.34329192209867343, 0.9557467261317436, 0.48634953628166855, 0.06735789320333596]),
        (u64::MAX, [0.3662420901697574, 0.7408050620013817, 0.510562089893682, 0.9269618291063265]),
    ];
    for (seed, want) in uniform {
        let got = Tensor::rand(&[4], seed, DType::F64, &CPU)?;
        assert_eq!(got.read_blocking::<f64>()?, want, "seed {seed}");
        // In smaller types, the leading digits of the same numbers.
        for (dtype, digits) in [(DType::F16, 11), (DType::BF16, 8), (DType::F32, 24)] {
            let scale = 2f64.powi(digits);
            let want = want.map(|x| (x * scale).floor() / scale);
            assert_eq!(
                array(&Tensor::rand(&[4], seed, dtype, &CPU)?).data,
                want,
                "seed {seed} in {dtype}"
            );
        }
    }
    let normal: [(u64, [f64; 4]); 4] = [
        (0, [-0.05514758347502203, 1.0717230427341664, 0.679124164549726, -0.3304283205632037]),
        (1, [-1.2350139673607807, -0.5770845644231655, 0.8284946442068649, -0.7140862743206186]),
        (42, [-0.37362775299365514, -0.26574438634819825, -1.5652394214048488, 1.3507003021878399]),
        (
            u64::MAX,
            [-0.4387214756878968, -0.5489113474545084, 1.0685959937297993, -0.16471913779908134],
        ),
    ];
    for (seed, want) in normal {
        let got = Tensor::randn(&[4], seed, DType::F64, &CPU)?;
        assert_eq!(got.read_blocking::<f64>()?, want, "seed {seed}");
        for dtype in [DType::F16, DType::BF16, DType::F32] {
            let want = want.map(|x| round(x, dtype));
            assert_eq!(
                array(&Tensor::randn(&[4], seed, dtype, &CPU)?).data,
                want,
                "seed {seed} in {dtype}"
            );
        }
    }
    Ok(())
}
