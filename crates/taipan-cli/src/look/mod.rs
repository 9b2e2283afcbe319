//! `taipan look`.

mod charts;
mod page;
mod paragraph;

use std::path::PathBuf;

use serde::Serialize;
use taipan_lm::{Attention, HALF_LIFE_EDGES, Inspection, LayerInspection, Tokenizer, write_file};

use self::page::Page;
use crate::generate::text_of;
use crate::model::{FloatModelFlags, Model};
use crate::{Failure, machine, usage};

/// Tokens that a picture has room for.
const MAX_TOKENS: usize = 512;

/// What to look at.
#[derive(clap::Args)]
#[command(group = clap::ArgGroup::new("input").required(true))]
pub struct Flags {
    #[command(flatten)]
    model: FloatModelFlags,
    /// The text; of a longer one the first 512 tokens
    #[arg(long, value_name = "TEXT", group = "input", allow_hyphen_values = true)]
    text: Option<String>,
    /// A file with the text; a line end at its end is not part of it
    #[arg(long, value_name = "FILE", group = "input")]
    text_file: Option<PathBuf>,
    /// The tokens, as 5,9,2: nothing is put before them
    #[arg(long, value_name = "IDS", value_delimiter = ',', num_args = 1, group = "input")]
    prompt_ids: Option<Vec<u32>>,
    /// The layer, from 0, whose step sizes and attention are drawn [default: the last]
    #[arg(long, value_name = "N")]
    layer: Option<usize>,
    /// The picture
    #[arg(long, value_name = "FILE", default_value = "look.svg")]
    out: PathBuf,
    /// Print the numbers behind the picture as one JSON document
    #[arg(long)]
    json: bool,
}

/// A text as the model read it.
struct Input {
    ids: Vec<u32>,
    /// What each token adds to the text; empty within a character.
    texts: Vec<String>,
    /// How many tokens it had before it was cut.
    tokens: usize,
}

/// Which token draws on which in a layer, by the mixers that it has.
struct Maps {
    hidden_attention: Option<Attention>,
    attention: Option<Attention>,
}

impl Maps {
    fn new(layer: &LayerInspection) -> Maps {
        Maps {
            hidden_attention: layer.scan.as_ref().map(|scan| scan.hidden_attention()),
            attention: layer.attention.as_ref().map(|attention| attention.attention()),
        }
    }
}

/// Draw a picture.
pub fn look(flags: &Flags) -> Result<(), Failure> {
    machine::with_threads(None, || {
        let model = flags.model.load()?;
        let layers = model.lm.config().layers.len();
        let layer = flags.layer.unwrap_or(layers - 1);
        if layer >= layers {
            return usage(format!("--layer is {layer}, expected less than {layers}"));
        }
        let input = flags.input(&model)?;
        let inspection = pollster::block_on(model.lm.inspect(&input.ids))?;
        let maps = Maps::new(&inspection.layers[layer]);
        let page = Page {
            name: name(&model),
            config: model.lm.config(),
            input: &input,
            inspection: &inspection,
            layer,
            maps: &maps,
        };
        write_file(&flags.out, page.svg().as_bytes())?;
        if flags.json {
            let report = Report::new(&input, &inspection, layer, &maps);
            return Ok(crate::print(&(serde_json::to_string(&report)? + "\n"))?);
        }
        Ok(crate::print(&format!("{}: {}\n", flags.out.display(), page.summary()))?)
    })
}

impl Flags {
    fn input(&self, model: &Model) -> Result<Input, Failure> {
        let text = match (&self.text, &self.text_file) {
            (Some(text), _) => Some(text.clone()),
            (None, Some(path)) => Some(text_of(path)?),
            (None, None) => None,
        };
        let mut ids = match (text, &self.prompt_ids) {
            (Some(text), _) => encode(model.require_tokenizer("--prompt-ids")?, &text)?,
            (None, ids) => ids.clone().unwrap_or_default(),
        };
        let tokens = ids.len();
        if tokens < 2 {
            return usage(format!("the text has {tokens} tokens, expected 2 or more"));
        }
        ids.truncate(MAX_TOKENS);
        let texts = texts(model.tokenizer(), &ids)?;
        Ok(Input { ids, texts, tokens })
    }
}

/// The tokens of a text, after the end-of-text token, as documents begin in training.
fn encode(tokenizer: &Tokenizer, text: &str) -> Result<Vec<u32>, Failure> {
    if text.is_empty() {
        return usage("the text is empty, expected at least one token");
    }
    Ok(tokenizer.eos_token_id().into_iter().chain(tokenizer.encode(text)?).collect())
}

/// What each token adds to the text; the number of a token without text.
fn texts(tokenizer: Option<&Tokenizer>, ids: &[u32]) -> Result<Vec<String>, Failure> {
    let mut stream = tokenizer.map(Tokenizer::stream);
    let size = tokenizer.map_or(0, Tokenizer::vocab_size);
    let eos = tokenizer.and_then(Tokenizer::eos_token_id);
    ids.iter()
        .map(|id| match &mut stream {
            _ if Some(*id) == eos => Ok("<eos>".into()),
            Some(stream) if (*id as usize) < size => Ok(stream.push(*id)?),
            _ => Ok(format!("[{id}]")),
        })
        .collect()
}

/// The directory of the model; of a checkpoint, with that of its run.
fn name(model: &Model) -> String {
    let path = model.path.canonicalize().unwrap_or_else(|_| model.path.clone());
    let of = |path: &std::path::Path| path.file_name().map(|n| n.to_string_lossy().into_owned());
    let name = of(&path).unwrap_or_else(|| "model".into());
    match path.parent().and_then(of) {
        Some(run) if taipan_lm::checkpoint_step(&name).is_some() => format!("{run}/{name}"),
        _ => name,
    }
}

/// The keys of `--json` are these fields.
#[derive(Serialize)]
struct Report<'a> {
    tokens: Vec<TokenReport<'a>>,
    /// `−ln p` of the last token, given those before it.
    loss: f64,
    half_life_edges: &'a [f64],
    /// Counted per layer between the edges.
    layers: Vec<LayerReport<'a>>,
    /// Of the scan of one layer, if it has one.
    hidden_attention: Option<AttentionReport<'a>>,
    /// Of the attention of this layer, if it has one.
    attention: Option<AttentionReport<'a>>,
}

#[derive(Serialize)]
struct TokenReport<'a> {
    id: u32,
    text: &'a str,
}

/// The first four are null in a layer without a scan.
#[derive(Serialize)]
struct LayerReport<'a> {
    mean_delta: Option<&'a [f64]>,
    half_lives: Option<&'a [u64]>,
    state_norm: Option<&'a [f64]>,
    gradient_reach: Option<&'a [f64]>,
    /// By keys and values; null in a layer without attention.
    attention_gradient_reach: Option<&'a [f64]>,
}

#[derive(Serialize)]
struct AttentionReport<'a> {
    layer: usize,
    /// The first token that it is about.
    first: usize,
    /// Row by row.
    values: Vec<&'a [f64]>,
}

impl<'a> Report<'a> {
    fn new(
        input: &'a Input,
        inspection: &'a Inspection,
        layer: usize,
        maps: &'a Maps,
    ) -> Report<'a> {
        let tokens = input.ids.iter().zip(&input.texts);
        let layers = inspection.layers.iter().map(|LayerInspection { scan, attention }| {
            let (scan, attention) = (scan.as_ref(), attention.as_ref());
            LayerReport {
                mean_delta: scan.map(|scan| &scan.mean_delta[..]),
                half_lives: scan.map(|scan| &scan.half_lives[..]),
                state_norm: scan.map(|scan| &scan.state_norm[..]),
                gradient_reach: scan.map(|scan| &scan.gradient_reach[..]),
                attention_gradient_reach: attention.map(|view| &view.gradient_reach[..]),
            }
        });
        let map = |map: &'a Attention| {
            let values = map.values.chunks(map.len).collect();
            AttentionReport { layer, first: map.first, values }
        };
        Report {
            tokens: tokens.map(|(id, text)| TokenReport { id: *id, text }).collect(),
            loss: inspection.loss,
            half_life_edges: &HALF_LIFE_EDGES,
            layers: layers.collect(),
            hidden_attention: maps.hidden_attention.as_ref().map(map),
            attention: maps.attention.as_ref().map(map),
        }
    }
}
