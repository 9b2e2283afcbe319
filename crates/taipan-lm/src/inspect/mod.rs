//! What a model makes of a text: step sizes, memory, states, attention, and how far gradients
//! reach. The formulas are in docs/math.md, "Looking into a model".

mod attention;
mod mamba;
mod ssd;

use std::f64::consts::SQRT_2;

use taipan::nn::{Mixing, Module};
use taipan::{DType, Tensor, concat};

pub use self::attention::{Attention, AttentionInspection};
use self::mamba::Mamba;
use self::ssd::Ssd;
use crate::error::{Result, ensure};
use crate::{LanguageModel, Role};

const OP: &str = "inspect";

/// Bins of half-lives per doubling, and the exponent of the first edge.
const BINS_PER_OCTAVE: usize = 2;
const FIRST_OCTAVE: i32 = -4;

/// The edges of the histogram of half-lives, in tokens: 1/16 to 65536, two bins per doubling. What
/// lies outside is counted in the first and the last bin.
pub const HALF_LIFE_EDGES: [f64; 41] = {
    let (mut edges, mut octave, mut i) = ([0.0; 41], 1.0 / 16.0, 0);
    while i < edges.len() {
        edges[i] = if i % 2 == 0 { octave } else { octave * SQRT_2 };
        octave *= if i % 2 == 0 { 1.0 } else { 2.0 };
        i += 1;
    }
    edges
};

/// What a model makes of a text: see [`LanguageModel::inspect`].
#[derive(Clone, Debug, PartialEq)]
pub struct Inspection {
    /// The tokens of the text.
    pub ids: Vec<u32>,
    /// `−ln p` of the last token, given those before it.
    pub loss: f64,
    /// One for each layer.
    pub layers: Vec<LayerInspection>,
}

/// What the mixers of one layer make of a text.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LayerInspection {
    /// The views of its state-space mixer; a layer of attention alone has none.
    pub scan: Option<ScanInspection>,
    /// The views of its attention, if it has one.
    pub attention: Option<AttentionInspection>,
}

/// What the scan of a layer makes of a text of `l` tokens, all row-major. Its *lanes* are what has a
/// step size of its own: the channels of Mamba, the heads of Mamba-2 and Mamba-3.
#[derive(Clone, Debug, PartialEq)]
pub struct ScanInspection {
    /// `[l, lanes]`: the step sizes Δ, after bias, softplus and limits. A lane with a large Δ writes
    /// the token into its states and forgets what was there; with a small Δ it skips the token.
    pub delta: Vec<f64>,
    /// `[l]`: the mean of Δ over lanes.
    pub mean_delta: Vec<f64>,
    /// How many half-lives `ln 2/(Δ·|A|)` lie between each two of [`HALF_LIFE_EDGES`]: for each token
    /// and lane those of its `n` states in Mamba, and one in Mamba-2 and Mamba-3, whose heads have
    /// one decay.
    pub half_lives: Vec<u64>,
    /// `[l]`: `‖h_t‖`, the norm of all states of the layer after each token.
    pub state_norm: Vec<f64>,
    /// `[l]`: `‖∂loss/∂h_t‖`, how much the prediction of the last token depends on the state after
    /// each token, through the states that follow and through the layers above. It is 0 for the
    /// last token, which comes after its own prediction.
    pub gradient_reach: Vec<f64>,
    recurrence: Recurrence,
}

/// What hidden attention is computed from.
#[derive(Clone, Debug, PartialEq)]
enum Recurrence {
    Mamba(Mamba),
    Ssd(Ssd),
}

/// The tensors of a mixer's op, on the device.
struct Observed {
    op: ObservedOp,
    inputs: Vec<Tensor>,
    /// Zeros that are added to the output, for its gradient.
    probe: Tensor,
}

enum ObservedOp {
    Mamba,
    Ssd,
    Attention { scale: Option<f64> },
}

impl LanguageModel {
    /// What the model makes of a text, layer by layer, from one pass forward and one backward. The
    /// views of scans are computed on the host, in f64, in time proportional to the number of
    /// states.
    ///
    /// The loss whose gradient is followed is that of predicting the last token from those before
    /// it, which is why there must be two tokens or more. Not for models
    /// [in 8 bits](LanguageModel::quantized), which have no gradient.
    ///
    /// ```
    /// use taipan::{DType, Device};
    /// use taipan_lm::{Config, LanguageModel, Preset};
    ///
    /// let config = Config { hidden_size: 16, ..Preset::Tiny.config(10) };
    /// let model = LanguageModel::new(&config, DType::F32, 1, &Device::Cpu)?;
    /// let inspection = pollster::block_on(model.inspect(&[3, 1, 4, 1, 5]))?;
    /// let scan = inspection.layers[1].scan.as_ref().expect("Mamba has a scan in every layer");
    /// assert!(scan.mean_delta.iter().all(|delta| (1e-3..0.2).contains(delta)), "a new model");
    /// assert!(scan.state_norm[4] > scan.state_norm[0], "which hardly forgets");
    /// assert_eq!(scan.hidden_attention().values.len(), 5 * 5);
    /// # Ok::<(), taipan_lm::Error>(())
    /// ```
    pub async fn inspect(&self, ids: &[u32]) -> Result<Inspection> {
        let (l, v) = (ids.len(), self.config().vocab_size);
        ensure!(l > 1, OP, "{l} tokens, expected 2 or more");
        if let Some(id) = ids.iter().find(|id| **id as usize >= v) {
            ensure!(false, OP, "token {id}, expected less than {v}");
        }
        let floats = !self.is_quantized();
        ensure!(floats, OP, "the weights are in 8 bits, expected floats: there is no gradient");
        // Gradients of weights are not needed, and take as much memory as the model.
        let mut model = self.clone();
        for (_, parameter) in model.parameters_mut() {
            *parameter = parameter.detached();
        }
        let mut observed = Vec::new();
        let loss = model.last_loss(ids, &mut |mixing, y| {
            let probe = Tensor::zeros(y.shape(), y.dtype(), y.device())?.tracked();
            let y = y.add(&probe)?;
            observed.push(Observed::new(mixing, probe));
            Ok(y)
        })?;
        // The gradient of a single token is small for f16.
        let scale = if self.dtype() == DType::F16 { 1024.0 } else { 1.0 };
        let upstream = Tensor::full(loss.shape(), scale, loss.dtype(), loss.device())?;
        let grads = loss.backward_from(&upstream)?;
        let mut observed = observed.into_iter();
        let mut layers = Vec::with_capacity(self.config().layers.len());
        for (i, kind) in self.config().layers.iter().enumerate() {
            let mut layer = LayerInspection::default();
            let mixers = usize::from(kind.has_ssm()) + usize::from(kind.has_attention());
            for observed in observed.by_ref().take(mixers) {
                let tensors = observed.with_gradients(grads.of(&observed.probe)?)?;
                let values = read_all(&tensors, Role::Recurrence.dtype(self.dtype())).await?;
                let finite = values.iter().flatten().all(|value| value.is_finite());
                ensure!(finite, OP, "layer {i} has values that are not finite numbers");
                let shapes: Vec<_> = tensors.iter().map(Tensor::shape).collect();
                match observed.op {
                    ObservedOp::Mamba => layer.scan = Some(mamba::inspect(&shapes, values, scale)),
                    ObservedOp::Ssd => layer.scan = Some(ssd::inspect(&shapes, values, scale)),
                    ObservedOp::Attention { scale: of_products } => {
                        let view = attention::inspect(&shapes, values, of_products, scale);
                        layer.attention = Some(view);
                    }
                }
            }
            layers.push(layer);
        }
        Ok(Inspection { ids: ids.to_vec(), loss: read(&loss).await?[0], layers })
    }
}

impl Observed {
    fn new(mixing: Mixing, probe: Tensor) -> Observed {
        let (op, inputs) = match mixing {
            Mixing::Scan(scan) => {
                let [z, bias] = [scan.z, scan.delta_bias].map(|given| given.expect("in a block"));
                let inputs = vec![scan.u, scan.delta, z, scan.b, scan.c, scan.a_log, bias];
                (ObservedOp::Mamba, inputs)
            }
            Mixing::Ssd(ssd, delta) => {
                let scale = ssd.scale.expect("in a block");
                let own_scale = ssd.own_scale.unwrap_or(scale);
                (ObservedOp::Ssd, vec![ssd.x, ssd.a, ssd.k, ssd.q, scale, own_scale, delta])
            }
            Mixing::Attention(attention) => {
                let op = ObservedOp::Attention { scale: attention.scale };
                (op, vec![attention.q, attention.k, attention.v])
            }
            _ => unreachable!("no other mixer is in a model"),
        };
        let inputs = inputs.into_iter().map(Tensor::detached).collect();
        Observed { op, inputs, probe }
    }

    /// The inputs and the gradient of the output, `dy`; of attention the gradients of keys and
    /// values instead.
    fn with_gradients(&self, dy: &Tensor) -> Result<Vec<Tensor>> {
        let mut tensors = self.inputs.clone();
        match (&self.op, &self.inputs[..]) {
            (ObservedOp::Attention { scale }, [q, k, v]) => {
                let (k, v) = (k.clone().tracked(), v.clone().tracked());
                let inputs =
                    taipan::Attention { scale: *scale, ..taipan::Attention::new(q, &k, &v) };
                let grads = taipan::attention(&inputs)?.backward_from(dy)?;
                tensors.extend([grads.of(&k)?.clone(), grads.of(&v)?.clone()]);
            }
            _ => tensors.push(dy.clone()),
        }
        Ok(tensors)
    }
}

/// The elements of tensors. They are read as one of type `wide`, since each read waits for the
/// device.
async fn read_all(tensors: &[Tensor], wide: DType) -> Result<Vec<Vec<f64>>> {
    let flat = |tensor: &Tensor| tensor.reshape(&[tensor.len()])?.cast(wide);
    let flat = tensors.iter().map(flat).collect::<taipan::Result<Vec<_>>>()?;
    let mut values = read(&concat(&flat.iter().collect::<Vec<_>>(), 0)?).await?.into_iter();
    Ok(tensors.iter().map(|tensor| values.by_ref().take(tensor.len()).collect()).collect())
}

/// The elements of a tensor in f32 or f64.
async fn read(tensor: &Tensor) -> Result<Vec<f64>> {
    Ok(match tensor.dtype() {
        DType::F64 => tensor.read::<f64>().await?,
        _ => tensor.read::<f32>().await?.into_iter().map(f64::from).collect(),
    })
}

impl ScanInspection {
    /// The scan as attention: for each lane `y_t = Σ_{s ≤ t} M[t, s]·x_s`, where `x` are its inputs,
    /// with
    ///
    /// ```text
    /// Mamba              M[t, s] = Σ_n C_t[n]·(Π_{r = s+1..t} ā_r[n])·Δ_s·B_s[n]
    /// Mamba-2, Mamba-3   M[t, s] = (q_t·k_s)·(Π_{r = s+1..t} ā_r)·scale_s
    /// ```
    ///
    /// and the mean of `|M|` over lanes is returned, for the last [`Attention::MAX_TOKENS`] tokens.
    /// In Mamba-2 `q` is C, `k` is B and `scale` is Δ. In Mamba-3 both are turned, and by the
    /// trapezoidal rule `scale_s` is `γ_s + β_{s+1}` for `s < t` and `γ_t` for the token itself; with
    /// several ranks there is an `M` for each two of them, and the mean is over these, too. The skip
    /// connection `D·x_t` and the gate are not in it. Computed when it is asked for, in time
    /// `len²·lanes·n`.
    pub fn hidden_attention(&self) -> Attention {
        match &self.recurrence {
            Recurrence::Mamba(mamba) => mamba.attention(&self.delta),
            Recurrence::Ssd(ssd) => ssd.attention(),
        }
    }

    /// The number of lanes.
    pub fn lanes(&self) -> usize {
        self.delta.len() / self.mean_delta.len()
    }
}

/// The mean of each of `l` rows.
fn row_means(values: &[f64], l: usize) -> Vec<f64> {
    let len = values.len() / l;
    values.chunks_exact(len).map(|row| row.iter().sum::<f64>() / len as f64).collect()
}

/// Where among the bins a half-life is, from its logarithm to the base 2.
fn bin(octaves: f64) -> f64 {
    (octaves - f64::from(FIRST_OCTAVE)) * BINS_PER_OCTAVE as f64
}

/// Counts half-lives by bin.
struct Histogram(Vec<u64>);

impl Histogram {
    fn new() -> Histogram {
        Histogram(vec![0; HALF_LIFE_EDGES.len() - 1])
    }

    fn count(&mut self, bin: f64) {
        let last = self.0.len() - 1;
        // Below the first edge it is negative, which becomes 0.
        self.0[(bin as usize).min(last)] += 1;
    }
}
