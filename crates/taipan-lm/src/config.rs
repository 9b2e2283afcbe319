//! The shape of a model, as `config.json` describes it.

use serde::Deserialize;
use serde_json::json;
use taipan::{DType, Scan};

use crate::{Error, InvalidValue};

/// Its name in errors.
const OWNER: &str = "config";

/// The hyper-parameters of a Mamba model, with the names and the defaults of Hugging Face's
/// `MambaConfig`.
///
/// ```
/// use taipan_lm::Config;
///
/// let json = r#"{"model_type": "mamba", "hidden_size": 768, "num_hidden_layers": 24}"#;
/// let config = Config::from_json(json)?;
/// assert_eq!(config.inner_size(), 1536);
/// assert_eq!(config.parameters(), 129_135_360); // mamba-130m
/// # Ok::<(), taipan_lm::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Rows of the embedding.
    pub vocab_size: usize,
    /// Width of the residual stream, the paper's `D` outside the block.
    pub hidden_size: usize,
    /// How many blocks.
    pub num_hidden_layers: usize,
    /// State per channel, the paper's `N`.
    pub state_size: usize,
    /// Kernel size of the causal convolution.
    pub conv_kernel: usize,
    /// Channels inside a block per channel of the residual stream, the paper's `E`.
    pub expand: usize,
    /// Rank of the projection that Δ comes from.
    pub time_step_rank: usize,
    /// Whether the projections into and out of a block have a bias.
    pub use_bias: bool,
    /// Whether the convolution has a bias.
    pub use_conv_bias: bool,
    /// What RMSNorm adds to the mean square.
    pub layer_norm_epsilon: f64,
    /// Whether the residual stream stays in f32 when the weights are smaller.
    pub residual_in_fp32: bool,
    /// Whether the head is the embedding, transposed.
    pub tie_word_embeddings: bool,
}

/// The keys of the file that matter here.
#[derive(Deserialize)]
#[serde(default)]
struct File {
    model_type: String,
    vocab_size: usize,
    hidden_size: usize,
    num_hidden_layers: usize,
    state_size: usize,
    conv_kernel: usize,
    expand: usize,
    intermediate_size: Option<usize>,
    time_step_rank: serde_json::Value,
    hidden_act: String,
    use_bias: bool,
    use_conv_bias: bool,
    layer_norm_epsilon: f64,
    residual_in_fp32: bool,
    tie_word_embeddings: Option<bool>,
    tie_embeddings: Option<bool>,
}

impl Default for File {
    fn default() -> Self {
        let config = Config::default();
        File {
            model_type: String::new(),
            vocab_size: config.vocab_size,
            hidden_size: config.hidden_size,
            num_hidden_layers: config.num_hidden_layers,
            state_size: config.state_size,
            conv_kernel: config.conv_kernel,
            expand: config.expand,
            intermediate_size: None,
            time_step_rank: "auto".into(),
            hidden_act: "silu".into(),
            use_bias: config.use_bias,
            use_conv_bias: config.use_conv_bias,
            layer_norm_epsilon: config.layer_norm_epsilon,
            residual_in_fp32: config.residual_in_fp32,
            tie_word_embeddings: None,
            tie_embeddings: None,
        }
    }
}

impl Default for Config {
    fn default() -> Self {
        Config {
            vocab_size: 50280,
            hidden_size: 768,
            num_hidden_layers: 32,
            state_size: 16,
            conv_kernel: 4,
            expand: 2,
            time_step_rank: 48,
            use_bias: false,
            use_conv_bias: true,
            layer_norm_epsilon: 1e-5,
            residual_in_fp32: true,
            tie_word_embeddings: true,
        }
    }
}

impl Config {
    /// Read a `config.json`. A model of another kind, an activation other than silu, a size of 0
    /// and an `intermediate_size` that is no multiple of `hidden_size` are refused.
    pub fn from_json(text: &str) -> crate::Result<Config> {
        let file: File = serde_json::from_str(&without_infinities(text))
            .map_err(|error| Error::invalid(OWNER, error))?;
        let kind = &file.model_type;
        expect("model_type", kind == "mamba", &format!("{kind:?}"), "\"mamba\"")?;
        expect("hidden_act", file.hidden_act == "silu", &file.hidden_act, "silu")?;
        // The file's own product wins over `expand`, which some tools leave at its default.
        let expanded = file.expand.saturating_mul(file.hidden_size);
        let inner = file.intermediate_size.unwrap_or(expanded);
        let (rank, automatic) = (&file.time_step_rank, file.hidden_size.div_ceil(16));
        let fine = rank == "auto" || rank.is_u64();
        expect("time_step_rank", fine, rank, "a number or \"auto\"")?;
        let time_step_rank =
            rank.as_u64().map_or(automatic, |n| n.try_into().unwrap_or(usize::MAX));
        let config = Config {
            vocab_size: file.vocab_size,
            hidden_size: file.hidden_size,
            num_hidden_layers: file.num_hidden_layers,
            state_size: file.state_size,
            conv_kernel: file.conv_kernel,
            expand: inner / file.hidden_size.max(1),
            time_step_rank,
            use_bias: file.use_bias,
            use_conv_bias: file.use_conv_bias,
            layer_norm_epsilon: file.layer_norm_epsilon,
            residual_in_fp32: file.residual_in_fp32,
            tie_word_embeddings: file.tie_word_embeddings.or(file.tie_embeddings).unwrap_or(true),
        };
        if file.hidden_size > 0 {
            let multiple = format!("a multiple of hidden_size, {}", file.hidden_size);
            expect("intermediate_size", inner == config.inner_size(), &inner, &multiple)?;
        }
        config.check()?;
        Ok(config)
    }

    /// [`Config::from_json`] of a file.
    #[cfg(not(target_family = "wasm"))]
    pub fn from_file(path: impl AsRef<std::path::Path>) -> crate::Result<Config> {
        let path = path.as_ref();
        let text = std::fs::read_to_string(path).map_err(Error::io(path))?;
        Config::from_json(&text).map_err(|error| Error::invalid(path.display(), error))
    }

    /// An error unless such a model can be computed.
    ///
    /// ```
    /// use taipan_lm::Config;
    ///
    /// let config = Config { state_size: 300, ..Config::default() };
    /// assert_eq!(
    ///     config.check().unwrap_err().to_string(),
    ///     "config: state_size is 300, expected 1 to 256"
    /// );
    /// ```
    pub fn check(&self) -> Result<(), InvalidValue> {
        // So that the number of parameters, a product of three, does not overflow.
        let largest = 1 << 18;
        let inner = self.expand.saturating_mul(self.hidden_size);
        for (name, size, most) in [
            ("vocab_size", self.vocab_size, largest),
            ("hidden_size", self.hidden_size, largest),
            ("num_hidden_layers", self.num_hidden_layers, largest),
            ("state_size", self.state_size, Scan::MAX_STATES),
            // Beyond it some GPU drivers end the loops of a kernel early.
            ("conv_kernel", self.conv_kernel, 1 << 13),
            ("expand", self.expand, largest / self.hidden_size.max(1)),
            ("time_step_rank", self.time_step_rank, inner),
        ] {
            InvalidValue::check(OWNER, name, size, 1..=most)?;
        }
        // Beyond it hardly anything is left of what is normed, and of its gradient.
        InvalidValue::check(OWNER, "layer_norm_epsilon", self.layer_norm_epsilon, 0.0..=1.0)
    }

    /// The `config.json` that Hugging Face's library writes for such a model, stored in `dtype`;
    /// `eos_token_id` is the token between documents, if there is one.
    ///
    /// ```
    /// use taipan::DType;
    /// use taipan_lm::Config;
    ///
    /// let config = Config { hidden_size: 64, time_step_rank: 4, ..Config::default() };
    /// assert_eq!(Config::from_json(&config.to_json(DType::F32, Some(0)))?, config);
    /// # Ok::<(), taipan_lm::Error>(())
    /// ```
    pub fn to_json(&self, dtype: DType, eos_token_id: Option<u32>) -> String {
        let dtype = match dtype {
            DType::F16 => "float16",
            DType::BF16 => "bfloat16",
            DType::F64 => "float64",
            _ => "float32",
        };
        let file = json!({
            "architectures": ["MambaForCausalLM"],
            "bos_token_id": eos_token_id,
            "conv_kernel": self.conv_kernel,
            // Newer versions of the library read this key, older ones `torch_dtype`.
            "dtype": dtype,
            "eos_token_id": eos_token_id,
            "expand": self.expand,
            "hidden_act": "silu",
            "hidden_size": self.hidden_size,
            "initializer_range": 0.02,
            "intermediate_size": self.inner_size(),
            "layer_norm_epsilon": self.layer_norm_epsilon,
            "model_type": "mamba",
            "num_hidden_layers": self.num_hidden_layers,
            "pad_token_id": eos_token_id,
            // It was, at initialisation. But asked for here, the library (5.22) scales what it has
            // loaded.
            "rescale_prenorm_residual": false,
            "residual_in_fp32": self.residual_in_fp32,
            "state_size": self.state_size,
            "tie_word_embeddings": self.tie_word_embeddings,
            "time_step_floor": 1e-4,
            "time_step_init_scheme": "random",
            "time_step_max": 0.1,
            "time_step_min": 1e-3,
            "time_step_rank": self.time_step_rank,
            "time_step_scale": 1.0,
            "torch_dtype": dtype,
            "use_bias": self.use_bias,
            "use_cache": true,
            "use_conv_bias": self.use_conv_bias,
            "use_mambapy": false,
            "vocab_size": self.vocab_size,
        });
        format!("{file:#}\n")
    }

    /// Channels inside a block, the paper's `D` of the scan.
    pub fn inner_size(&self) -> usize {
        self.expand * self.hidden_size
    }

    /// The number of parameters.
    pub fn parameters(&self) -> usize {
        let (d, inner, n) = (self.hidden_size, self.inner_size(), self.state_size);
        let bias = |len: usize, used: bool| if used { len } else { 0 };
        let in_proj = 2 * inner * d + bias(2 * inner, self.use_bias);
        let conv = inner * self.conv_kernel + bias(inner, self.use_conv_bias);
        let x_proj = (self.time_step_rank + 2 * n) * inner;
        let dt_proj = inner * self.time_step_rank + inner;
        let scan = inner * n + inner; // A_log and D
        let out_proj = d * inner + bias(d, self.use_bias);
        let layer = d + in_proj + conv + x_proj + dt_proj + scan + out_proj;
        let embeddings = self.vocab_size * d * if self.tie_word_embeddings { 1 } else { 2 };
        embeddings + self.num_hidden_layers * layer + d
    }
}

fn expect(
    name: &'static str,
    fine: bool,
    found: &dyn ToString,
    expected: &str,
) -> Result<(), InvalidValue> {
    let (found, expected) = (found.to_string(), expected.into());
    if fine { Ok(()) } else { Err(InvalidValue { owner: OWNER, name, found, expected }) }
}

/// Python writes `Infinity` and `NaN` where JSON knows no such number: make them `null` outside of
/// strings. None of the keys read here has such a value.
fn without_infinities(text: &str) -> String {
    let (mut out, mut in_string) = (String::with_capacity(text.len()), false);
    for part in text.split_inclusive('"') {
        match in_string {
            true => out += part,
            false => {
                let words = ["-Infinity", "Infinity", "NaN"].into_iter();
                out += &words.fold(part.to_owned(), |part, word| part.replace(word, "null"));
            }
        }
        // A quote behind an odd number of backslashes is part of the string.
        let before = part.strip_suffix('"').unwrap_or(part);
        let backslashes = before.len() - before.trim_end_matches('\\').len();
        in_string = !in_string || backslashes % 2 == 1;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_those_of_hugging_face() {
        let config = Config::from_json(r#"{"model_type": "mamba"}"#).unwrap();
        assert_eq!((config.hidden_size, config.num_hidden_layers), (768, 32));
        assert_eq!((config.time_step_rank, config.inner_size()), (48, 1536));
        assert!(config.tie_word_embeddings && config.use_conv_bias && !config.use_bias);
    }

    #[test]
    fn what_tools_write_is_read() {
        let json = r#"{"model_type": "mamba", "hidden_size": 40, "expand": 2,
            "intermediate_size": 120, "time_step_rank": "auto", "time_step_limit": [0.0, Infinity],
            "comment": "a \"NaN\" in a string", "tie_embeddings": false}"#;
        let config = Config::from_json(json).unwrap();
        assert_eq!(config.expand, 3, "intermediate_size wins over expand");
        assert_eq!(config.time_step_rank, 3, "ceil(40 / 16)");
        assert!(!config.tie_word_embeddings);
    }

    #[test]
    fn the_largest_model_can_be_counted() {
        let json = r#"{"model_type": "mamba", "hidden_size": 262144, "num_hidden_layers": 262144,
            "expand": 1, "state_size": 256, "conv_kernel": 8192, "vocab_size": 262144,
            "time_step_rank": 262144, "tie_embeddings": true, "tie_word_embeddings": false}"#;
        let config = Config::from_json(json).unwrap();
        assert!(config.parameters() > 1 << 53 && !config.tie_word_embeddings);
    }

    #[test]
    fn biases_and_an_untied_head_count() {
        let plain = Config::from_json(r#"{"model_type": "mamba"}"#).unwrap();
        let biased = Config { use_bias: true, ..plain.clone() };
        let untied = Config { tie_word_embeddings: false, ..plain.clone() };
        assert_eq!(biased.parameters() - plain.parameters(), 32 * (2 * 1536 + 768));
        assert_eq!(untied.parameters() - plain.parameters(), 50280 * 768);
    }

    #[test]
    fn what_is_written_is_read() {
        let changes: [fn(&mut Config); 4] = [
            |c| (c.layer_norm_epsilon, c.tie_word_embeddings) = (0.1 + 0.2, false),
            |c| (c.use_bias, c.use_conv_bias, c.residual_in_fp32) = (true, false, false),
            |c| (c.expand, c.time_step_rank, c.state_size, c.conv_kernel) = (3, 5, 7, 2),
            |c| (c.vocab_size, c.hidden_size, c.num_hidden_layers, c.time_step_rank) = (9, 8, 1, 1),
        ];
        for change in changes {
            let mut config = Config::default();
            change(&mut config);
            let json = config.to_json(DType::BF16, None);
            assert!(json.contains("\"rescale_prenorm_residual\": false"), "see there");
            assert_eq!(Config::from_json(&json).unwrap(), config);
        }
    }

    #[test]
    fn invalid_values_are_refused() {
        let error = |json: &str| Config::from_json(json).unwrap_err().to_string();
        for (key, value, expected) in [
            ("hidden_size", "0", "1 to 262144"),
            ("intermediate_size", "1000", "a multiple of hidden_size, 768"),
            ("time_step_rank", r#""big""#, "a number or \"auto\""),
            ("state_size", "257", "1 to 256"),
        ] {
            let found = error(&format!(r#"{{"model_type": "mamba", "{key}": {value}}}"#));
            assert_eq!(found, format!("config: {key} is {value}, expected {expected}"));
        }
        let mamba2 = "config: model_type is \"mamba2\", expected \"mamba\"";
        assert_eq!(error(r#"{"model_type": "mamba2"}"#), mamba2);
        assert_eq!(error("{}"), mamba2.replace("mamba2", ""));
        let relu = error(r#"{"model_type": "mamba", "hidden_act": "relu"}"#);
        assert_eq!(relu, "config: hidden_act is relu, expected silu");
        for epsilon in ["1e300", "-1e-5", "NaN"] {
            let json = format!(r#"{{"model_type": "mamba", "layer_norm_epsilon": {epsilon}}}"#);
            assert!(Config::from_json(&json).is_err(), "{epsilon}");
        }
        assert!(error("[").starts_with("config: EOF while parsing"));
    }
}
