//! The tensors of a model's files: names, shapes and roles.

use super::{Config, Ssm};
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
        count(self.outer_tensors()) + self.num_hidden_layers * count(self.layer_tensors(0))
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
        let layers = (0..self.num_hidden_layers).flat_map(|i| self.layer_tensors(i));
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

    fn layer_tensors(&self, index: usize) -> Vec<TensorSpec> {
        let names = self.family.names();
        let layer = format!("{}.{index}", names.layers);
        let norm = format!("{layer}.{}.weight", names.norm);
        let mut all = vec![TensorSpec::new(&norm, &[self.hidden_size], Role::Vector)];
        let mixer = format!("{layer}.{}", names.mixer);
        all.extend(match self.ssm {
            Ssm::Mamba { time_step_rank, .. } => self.mamba_tensors(&mixer, time_step_rank),
            Ssm::Mamba2 { head_dim, .. } => self.mamba2_tensors(&mixer, head_dim),
        });
        all
    }

    fn mamba2_tensors(&self, mixer: &str, head_dim: usize) -> Vec<TensorSpec> {
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
                ("norm.weight", &[inner], vector, true),
                ("out_proj.weight", &[d, inner], matrix, true),
                ("out_proj.bias", &[d], vector, self.use_bias),
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
