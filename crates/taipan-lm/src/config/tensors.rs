//! The tensors of a model's files: names, shapes and roles.

use taipan::nn::MlpLayout;

use super::{AttentionConfig, Config, LayerKind, Mamba3Config, MlpConfig, Ssm};
use crate::Role;

/// Whose names and `config.json` a model's files have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Layout {
    /// Hugging Face's transformers.
    #[default]
    HuggingFace,
    /// The paper's code, `state-spaces/mamba`.
    Original,
}

/// A tensor of a model's files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorSpec {
    /// Its name in Hugging Face's layout; see [`Layout::name`].
    pub name: String,
    /// Its shape in the file.
    pub shape: Vec<usize>,
    /// What it is to the model, which determines its [dtype](Role::dtype).
    pub role: Role,
}

/// The head's name, in every family.
pub(crate) const HEAD: &str = "lm_head.weight";

impl Layout {
    /// What files of this layout call a tensor that has this name in Hugging Face's.
    ///
    /// ```
    /// use taipan_lm::Layout;
    ///
    /// let name = Layout::Original.name("backbone.embeddings.weight");
    /// assert_eq!(name, "backbone.embedding.weight");
    /// ```
    pub fn name(self, name: &str) -> &str {
        match self {
            Layout::Original if name == "backbone.embeddings.weight" => "backbone.embedding.weight",
            _ => name,
        }
    }
}

impl Config {
    /// The number of parameters.
    pub fn parameters(&self) -> usize {
        self.count(|_| true)
    }

    /// The number of parameters of a role.
    pub(crate) fn parameters_of(&self, role: Role) -> usize {
        self.count(|tensor| tensor.role == role)
    }

    fn count(&self, counted: impl Fn(&TensorSpec) -> bool) -> usize {
        let count = |tensors: Vec<TensorSpec>| -> usize {
            let counted = tensors.iter().filter(|tensor| counted(tensor));
            counted.map(|tensor| tensor.shape.iter().product::<usize>()).sum()
        };
        let kinds = [LayerKind::Ssm, LayerKind::Attention, LayerKind::Both];
        let layers =
            kinds.map(|kind| match self.layers.iter().filter(|layer| **layer == kind).count() {
                0 => 0,
                layers => layers * count(self.layer_tensors(0, kind)),
            });
        count(self.outer_tensors()) + layers.iter().sum::<usize>()
    }

    /// The tensors of the model's files, layer by layer.
    ///
    /// ```
    /// let tensors = taipan_lm::Config::default().tensors();
    /// assert_eq!(tensors.len(), 32 * 10 + 2);
    /// assert_eq!(tensors[2].name, "backbone.layers.0.mixer.in_proj.weight");
    /// assert_eq!(tensors[2].shape, [3072, 768]);
    /// ```
    pub fn tensors(&self) -> Vec<TensorSpec> {
        let mut outer = self.outer_tensors().into_iter();
        let embeddings = outer.next();
        let layers =
            self.layers.iter().enumerate().flat_map(|(i, kind)| self.layer_tensors(i, *kind));
        embeddings.into_iter().chain(layers).chain(outer).collect()
    }

    /// Those outside of the layers, the embedding first.
    fn outer_tensors(&self) -> Vec<TensorSpec> {
        let (v, d) = (self.vocab_size, self.hidden_size);
        let table = |name: &str| TensorSpec::new(name, &[v, d], Role::Matrix);
        let norm_f = format!("{}.weight", self.family.names().norm_f);
        let norm = TensorSpec::new(&norm_f, &[d], Role::Vector);
        let head = (!self.tie_word_embeddings).then(|| table(HEAD));
        [table(&self.embeddings()), norm].into_iter().chain(head).collect()
    }

    /// The name of the embedding.
    pub(crate) fn embeddings(&self) -> String {
        format!("{}.weight", self.family.names().embeddings)
    }

    fn layer_tensors(&self, index: usize, kind: LayerKind) -> Vec<TensorSpec> {
        let names = self.family.names();
        let layer = format!("{}.{index}", names.layers);
        let norm = |name| {
            let name = format!("{layer}.{name}.weight");
            TensorSpec::new(&name, &[self.hidden_size], Role::Vector)
        };
        let mut all = vec![norm(names.norm)];
        if kind.has_ssm() {
            let mixer = format!("{layer}.{}", names.ssm);
            all.extend(match self.ssm {
                Ssm::Mamba { time_step_rank, .. } => self.mamba_tensors(&mixer, time_step_rank),
                Ssm::Mamba2 { head_dim, norm, .. } => {
                    self.mamba2_tensors(&mixer, head_dim, norm.is_some())
                }
                Ssm::Mamba3(mamba3) => self.mamba3_tensors(&mixer, mamba3),
            });
        }
        if let Some(attention) = self.attention.filter(|_| kind.has_attention()) {
            all.extend(self.attention_tensors(&format!("{layer}.{}", names.attention), attention));
        }
        if let Some(mlp) = self.mlp {
            all.push(norm(names.mlp_norm));
            all.extend(self.mlp_tensors(&format!("{layer}.{}", names.mlp), mlp));
        }
        all
    }

    fn attention_tensors(&self, mixer: &str, attention: AttentionConfig) -> Vec<TensorSpec> {
        let AttentionConfig { num_heads, num_key_value_heads, head_dim, use_bias, .. } = attention;
        let (d, q, k) = (self.hidden_size, num_heads * head_dim, num_key_value_heads * head_dim);
        let (matrix, vector) = (Role::Matrix, Role::Vector);
        named(
            mixer,
            &[
                ("q_proj.weight", &[q, d], matrix, true),
                ("q_proj.bias", &[q], vector, use_bias),
                ("k_proj.weight", &[k, d], matrix, true),
                ("k_proj.bias", &[k], vector, use_bias),
                ("v_proj.weight", &[k, d], matrix, true),
                ("v_proj.bias", &[k], vector, use_bias),
                ("o_proj.weight", &[d, q], matrix, true),
                ("o_proj.bias", &[d], vector, use_bias),
            ],
        )
    }

    fn mlp_tensors(&self, mlp: &str, MlpConfig { size, use_bias }: MlpConfig) -> Vec<TensorSpec> {
        let d = self.hidden_size;
        let matrices: &[(&str, [usize; 2])] = match self.family.names().mlp_layout {
            MlpLayout::Separate => {
                &[("gate_proj", [size, d]), ("up_proj", [size, d]), ("down_proj", [d, size])]
            }
            MlpLayout::GateFirst => {
                &[("input_linear", [2 * size, d]), ("output_linear", [d, size])]
            }
            MlpLayout::GateLast => &[("fc1", [2 * size, d]), ("fc2", [d, size])],
        };
        let tensors = matrices.iter().flat_map(|(name, shape)| {
            let weight = TensorSpec::new(&format!("{mlp}.{name}.weight"), shape, Role::Matrix);
            let bias = TensorSpec::new(&format!("{mlp}.{name}.bias"), &shape[..1], Role::Vector);
            [weight].into_iter().chain(use_bias.then_some(bias))
        });
        tensors.collect()
    }

    fn mamba2_tensors(&self, mixer: &str, head_dim: usize, has_norm: bool) -> Vec<TensorSpec> {
        let (d, inner, k) = (self.hidden_size, self.inner_size(), self.conv_kernel);
        let (heads, xbc) = (inner / head_dim, self.conv_channels());
        let rows = inner + xbc + heads;
        let (matrix, vector, recurrence) = (Role::Matrix, Role::Vector, Role::Recurrence);
        named(
            mixer,
            &[
                ("in_proj.weight", &[rows, d], matrix, true),
                ("in_proj.bias", &[rows], vector, self.use_bias),
                ("conv1d.weight", &[xbc, 1, k], matrix, true),
                ("conv1d.bias", &[xbc], vector, self.use_conv_bias),
                ("dt_bias", &[heads], recurrence, true),
                ("A_log", &[heads], recurrence, true),
                ("D", &[heads], recurrence, true),
                ("norm.weight", &[inner], vector, has_norm),
                ("out_proj.weight", &[d, inner], matrix, true),
                ("out_proj.bias", &[d], vector, self.has_out_proj_bias()),
            ],
        )
    }

    fn mamba3_tensors(&self, mixer: &str, mamba3: Mamba3Config) -> Vec<TensorSpec> {
        let (d, inner, n) = (self.hidden_size, self.inner_size(), self.state_size);
        let Mamba3Config { head_dim: p, n_groups: g, mimo_rank, out_norm, .. } = mamba3;
        let (h, r, is_mimo) = (inner / p, mamba3.ranks(), mimo_rank.is_some());
        let rows = 2 * inner + 2 * r * g * n + 3 * h + mamba3.angles(n);
        let (matrix, vector, recurrence) = (Role::Matrix, Role::Vector, Role::Recurrence);
        named(
            mixer,
            &[
                ("in_proj.weight", &[rows, d], matrix, true),
                ("dt_bias", &[h], recurrence, true),
                ("B_bias", &[h, r, n], recurrence, true),
                ("C_bias", &[h, r, n], recurrence, true),
                ("B_norm.weight", &[n], vector, true),
                ("C_norm.weight", &[n], vector, true),
                ("mimo_x", &[h, r, p], matrix, is_mimo),
                ("mimo_z", &[h, r, p], matrix, is_mimo),
                ("mimo_o", &[h, r, p], matrix, is_mimo),
                ("D", &[h], recurrence, true),
                ("norm.weight", &[inner], vector, out_norm),
                ("out_proj.weight", &[d, inner], matrix, true),
            ],
        )
    }

    fn mamba_tensors(&self, mixer: &str, r: usize) -> Vec<TensorSpec> {
        let (d, inner, n) = (self.hidden_size, self.inner_size(), self.state_size);
        let k = self.conv_kernel;
        let (matrix, vector, recurrence) = (Role::Matrix, Role::Vector, Role::Recurrence);
        named(
            mixer,
            &[
                ("in_proj.weight", &[2 * inner, d], matrix, true),
                ("in_proj.bias", &[2 * inner], vector, self.use_bias),
                ("conv1d.weight", &[inner, 1, k], matrix, true),
                ("conv1d.bias", &[inner], vector, self.use_conv_bias),
                ("x_proj.weight", &[r + 2 * n, inner], matrix, true),
                ("dt_proj.weight", &[inner, r], matrix, true),
                ("dt_proj.bias", &[inner], recurrence, true),
                ("A_log", &[inner, n], recurrence, true),
                ("D", &[inner], recurrence, true),
                ("out_proj.weight", &[d, inner], matrix, true),
                ("out_proj.bias", &[d], vector, self.use_bias),
            ],
        )
    }
}

/// The tensors of a mixer that are used, of names in it.
fn named(mixer: &str, all: &[(&str, &[usize], Role, bool)]) -> Vec<TensorSpec> {
    let used = all.iter().filter(|(.., used)| *used);
    used.map(|(name, shape, role, _)| TensorSpec::new(&format!("{mixer}.{name}"), shape, *role))
        .collect()
}

impl TensorSpec {
    fn new(name: &str, shape: &[usize], role: Role) -> TensorSpec {
        TensorSpec { name: name.into(), shape: shape.to_vec(), role }
    }
}
