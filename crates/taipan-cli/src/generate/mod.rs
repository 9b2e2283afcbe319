//! `taipan generate`.

mod interactive;
mod output;
mod report;

use std::io::{IsTerminal, Read};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::Instant;

use taipan_lm::{Completion, CompletionOptions, Generation, PromptCache, Sampler, Snapshot};

use self::output::Output;
pub use self::output::printable;
use self::report::Speed;
use crate::model::{Model, ModelFlags};
use crate::{Failure, Usage, machine, message, stop, usage};

/// Below 1: most of what a small model is unsure about is wrong.
pub const TEMPERATURE: f64 = 0.7;

/// What to generate, and how.
#[derive(clap::Args)]
pub struct Flags {
    #[command(flatten)]
    model: ModelFlags,
    /// Prompt: the text to continue [default: standard input; on a terminal, line by line]
    #[arg(long, value_name = "TEXT", conflicts_with_all = ["prompt_file", "prompt_ids"])]
    #[arg(allow_hyphen_values = true)]
    prompt: Option<String>,
    /// Read the prompt from a file, without the newline at its end
    #[arg(long, value_name = "FILE", conflicts_with = "prompt_ids")]
    prompt_file: Option<PathBuf>,
    /// Prompt as token ids, for example 5,9,2; nothing is added before them
    #[arg(long, value_name = "IDS", value_delimiter = ',', num_args = 1)]
    prompt_ids: Option<Vec<u32>>,
    /// Maximum number of tokens to generate
    #[arg(short, value_name = "N", default_value_t = 256)]
    n: usize,
    /// Sampling temperature; 0 for greedy decoding
    #[arg(long, value_name = "T", default_value_t = TEMPERATURE)]
    temperature: f64,
    /// Top-k sampling: from the K most likely tokens
    #[arg(long, value_name = "K")]
    top_k: Option<usize>,
    /// Top-p (nucleus) sampling: from the most likely tokens with total probability P
    #[arg(long, value_name = "P", default_value_t = 1.0)]
    top_p: f64,
    /// Min-p sampling: from tokens at least P times as likely as the most likely one
    #[arg(long, value_name = "P", default_value_t = 0.0)]
    min_p: f64,
    /// Repetition penalty, for tokens that are already in the text; 1 disables
    #[arg(long, value_name = "X", default_value_t = 1.0)]
    repetition_penalty: f64,
    /// Random seed: the same seed gives the same text [default: 0, or that of --load-state]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Stop sequence: generation ends before this text; may be repeated
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    stop: Vec<String>,
    /// Do not stop at the end-of-text token
    #[arg(long)]
    ignore_eos: bool,
    /// Print the text when it is complete, not token by token
    #[arg(long)]
    no_stream: bool,
    /// Batch size: texts to generate in parallel
    #[arg(long, value_name = "N")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=65536))]
    batch: Option<u32>,
    /// Print one JSON object per text, with its token ids
    #[arg(long)]
    json: bool,
    /// Print each token with its log-probability and those of the K likeliest tokens [default: 5]
    #[arg(long, value_name = "K", num_args = 0..=1, require_equals = true)]
    #[arg(default_missing_value = "5")]
    logprobs: Option<usize>,
    /// Write the model's state after the text to a file, from which --load-state continues
    #[arg(long, value_name = "FILE")]
    save_state: Option<PathBuf>,
    /// Continue from a state; a prompt that is given by a flag comes after it
    #[arg(long, value_name = "FILE", conflicts_with = "cache")]
    load_state: Option<PathBuf>,
    /// Prompt cache: keep the states of prompts in this directory, and continue from them
    #[arg(long, value_name = "DIR")]
    cache: Option<PathBuf>,
    /// Maximum size of --cache; the least recently used states are removed
    #[arg(long, value_name = "MIB", default_value_t = 1024)]
    cache_size: u64,
}

/// What to continue.
enum Prompt {
    Ids(Vec<u32>),
    Text(String),
    /// Lines of a terminal.
    Interactive,
}

/// Generate text.
pub fn generate(flags: &Flags) -> Result<(), Failure> {
    stop::listen()?;
    flags.sampler(0).check().map_err(Usage::from)?;
    if flags.stop.iter().any(String::is_empty) {
        return usage("--stop is empty, expected a text");
    }
    let prompt = flags.prompt()?;
    let interrupted = machine::with_threads(None, || {
        let model = flags.model.load()?;
        if model.tokenizer().is_none() && !flags.stop.is_empty() {
            model.require_tokenizer("--prompt-ids, and no --stop")?;
        }
        let mut session = Session::new(flags, &model)?;
        match prompt {
            Prompt::Interactive => interactive::run(&mut session),
            Prompt::Text(text) => {
                let ids = session.encode(&text)?;
                session.print(&ids)
            }
            Prompt::Ids(ids) => session.print(&ids),
        }
    })?;
    match interrupted {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(()) => std::process::exit(stop::INTERRUPTED),
    }
}

impl Flags {
    fn sampler(&self, seed: u64) -> Sampler {
        Sampler {
            temperature: self.temperature,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            repetition_penalty: self.repetition_penalty,
            seed,
        }
    }

    fn prompt(&self) -> Result<Prompt, Failure> {
        if let Some(ids) = &self.prompt_ids {
            return Ok(Prompt::Ids(ids.clone()));
        }
        if let Some(text) = &self.prompt {
            return Ok(Prompt::Text(text.clone()));
        }
        if let Some(path) = &self.prompt_file {
            return text_of(path).map(Prompt::Text);
        }
        if self.load_state.is_some() {
            return Ok(Prompt::Ids(Vec::new()));
        }
        if std::io::stdin().is_terminal() {
            let needs_prompt = [
                ("--save-state", self.save_state.is_some()),
                ("--batch", self.batch.is_some()),
                ("--json", self.json),
                ("--logprobs", self.logprobs.is_some()),
            ];
            return match needs_prompt.iter().find(|(_, given)| *given) {
                Some((flag, _)) => usage(format!("{flag} needs a prompt, expected --prompt")),
                None => Ok(Prompt::Interactive),
            };
        }
        let mut bytes = Vec::new();
        let read = std::io::stdin().lock().read_to_end(&mut bytes);
        read.map_err(|error| format!("standard input: {error}"))?;
        text(bytes, "standard input").map(Prompt::Text)
    }
}

/// The text of a file, without the line end that editors and `echo` put at its end.
pub fn text_of(path: &Path) -> Result<String, Failure> {
    let bytes = std::fs::read(path).map_err(taipan_lm::Error::io(path))?;
    text(bytes, &path.display().to_string())
}

/// The same for what was read.
fn text(bytes: Vec<u8>, name: &str) -> Result<String, Failure> {
    let mut text = String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        format!(
            "{name}: not valid UTF-8: the byte at offset {at} is 0x{:02x}",
            error.as_bytes()[at]
        )
    })?;
    if text.ends_with('\n') {
        text.pop();
        if text.ends_with('\r') {
            text.pop();
        }
    }
    Ok(text)
}

/// What stays the same from text to text.
struct Session<'a> {
    flags: &'a Flags,
    model: &'a Model,
    /// Of the model, where it is needed.
    fingerprint: String,
    cache: Option<PromptCache>,
    loaded: Option<Snapshot>,
    seed: u64,
}

/// Texts, and what they took.
struct Generated<'a> {
    generation: Generation<'a>,
    /// None if the prompt was interrupted.
    texts: Vec<Completion>,
    speed: Speed,
}

impl<'a> Session<'a> {
    fn new(flags: &'a Flags, model: &'a Model) -> Result<Session<'a>, Failure> {
        let lm = &model.lm;
        let states = [&flags.save_state, &flags.load_state, &flags.cache];
        let fingerprint = match states.iter().any(|path| path.is_some()) {
            true => pollster::block_on(lm.fingerprint())?,
            false => String::new(),
        };
        let open = |path: &PathBuf| {
            PromptCache::open(path, flags.cache_size.saturating_mul(1 << 20), &fingerprint)
        };
        let cache = flags.cache.as_ref().map(open).transpose()?;
        let load = |path: &PathBuf| Snapshot::load(path, lm, &fingerprint);
        let loaded = flags.load_state.as_ref().map(load).transpose()?;
        let seed = flags.seed.or(loaded.as_ref().map(|loaded| loaded.seed)).unwrap_or(0);
        Ok(Session { flags, model, fingerprint, cache, loaded, seed })
    }

    /// The tokens of a prompt. A text begins with the end-of-text token, as documents do in
    /// training.
    fn encode(&self, text: &str) -> Result<Vec<u32>, Failure> {
        if text.is_empty() && self.loaded.is_some() {
            return Ok(Vec::new());
        }
        let tokenizer = self.model.require_tokenizer("--prompt-ids")?;
        let eos = tokenizer.eos_token_id().filter(|_| self.loaded.is_none());
        Ok(eos.into_iter().chain(tokenizer.encode(text)?).collect())
    }

    /// Generate texts from a prompt and print them.
    fn print(&self, ids: &[u32]) -> Result<ControlFlow<()>, Failure> {
        let flags = self.flags;
        let mut output = Output::new();
        let loaded = self.loaded.as_ref().map_or(1, |loaded| loaded.state.batch_size());
        let batch = flags.batch.map_or(loaded, |batch| batch as usize);
        let streams = !flags.no_stream && !flags.json && flags.logprobs.is_none() && batch == 1;
        stop::begin();
        let Generated { mut generation, texts, speed } = self.generate(ids, |text| {
            if streams {
                output.write(text);
            }
            output.is_open()
        })?;
        let json = flags.json.then_some(report::Json { session: self, prompt_ids: ids });
        for (i, text) in texts.iter().enumerate() {
            let tokenizer = self.model.tokenizer();
            if let Some(json) = &json {
                output.write_raw(&json.line(text)?);
                continue;
            }
            if texts.len() > 1 {
                output.write(&format!("==> {} <==\n", i + 1));
            }
            match tokenizer {
                _ if flags.logprobs.is_some() => output.write(&report::log_probs(text, tokenizer)?),
                None => output.write(&report::ids(&text.ids)),
                Some(_) if streams => {}
                Some(_) => output.write(&text.text),
            }
            output.write_raw("\n");
        }
        speed.print();
        if let Some(path) = flags.save_state.as_ref().filter(|_| !texts.is_empty()) {
            generation.snapshot()?.save(path, &self.model.lm, &self.fingerprint)?;
        }
        output.finish()?;
        Ok(if stop::requested() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
    }

    /// Generate texts from a prompt; `show` gets the text of the first as it comes, and returns
    /// whether more is wanted.
    fn generate(
        &self,
        ids: &[u32],
        mut show: impl FnMut(&str) -> bool,
    ) -> Result<Generated<'a>, Failure> {
        let flags = self.flags;
        let began = Instant::now();
        let (mut generation, cached) = self.begin(ids)?;
        let mut rest = &ids[cached..];
        while !rest.is_empty() && !stop::requested() {
            rest = generation.prompt_chunk(rest)?;
            if let Some(cache) = &self.cache {
                let stored = cache.store(&mut generation, &ids[..ids.len() - rest.len()]);
                stored.unwrap_or_else(message::warning);
            }
        }
        if let Some(batch) = flags.batch {
            let (found, batch) = (generation.batch_size(), batch as usize);
            if found != batch && found != 1 {
                return usage(format!("--batch is {batch}, but --load-state has {found} texts"));
            }
            generation = if found == 1 { generation.fork(batch)? } else { generation };
        }
        if generation.position() == 0 {
            return usage("the prompt is empty, and there is no token to begin with");
        }
        let processed = began.elapsed();
        let tokenizer = self.model.tokenizer();
        let options = CompletionOptions {
            tokenizer,
            max_tokens: flags.n,
            stops: flags.stop.clone(),
            eos_token_id: tokenizer
                .and_then(|tokenizer| tokenizer.eos_token_id())
                .filter(|_| !flags.ignore_eos),
            log_probs: flags.logprobs,
        };
        let mut first = None;
        let show = |sequence: usize, text: &str| {
            first.get_or_insert_with(|| began.elapsed());
            let goes_on = (sequence > 0 || show(text)) && !stop::requested();
            if goes_on { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        };
        let texts = match rest {
            [] => pollster::block_on(generation.complete(&options, show))?,
            _ => Vec::new(),
        };
        let speed = Speed {
            prompt: ids.len(),
            cached,
            generated: texts.iter().map(|text| text.ids.len()).sum(),
            // On a GPU the prompt is processed when the first token is read.
            prompt_time: first.unwrap_or(processed),
            time: began.elapsed(),
        };
        Ok(Generated { generation, texts, speed })
    }

    /// A generation that has processed the beginning of a prompt, and how much of it.
    fn begin(&self, ids: &[u32]) -> Result<(Generation<'a>, usize), Failure> {
        let (model, sampler) = (self.model, self.flags.sampler(self.seed));
        let hit = self.cache.as_ref().map(|cache| cache.find(&model.lm, ids));
        let (found, problems) = hit.map_or((None, Vec::new()), |hit| (hit.found, hit.problems));
        problems.iter().for_each(|problem| message::warning(format!("{problem}; it is removed")));
        let (cached, snapshot) = match (found, &self.loaded) {
            (Some((cached, snapshot)), _) => (cached, Some(snapshot)),
            (None, loaded) => (0, loaded.clone()),
        };
        let generation = match snapshot {
            Some(snapshot) => Generation::resume(&model.lm, sampler, snapshot)?,
            None => Generation::new(&model.lm, sampler)?,
        };
        let generation = match model.tokenizer() {
            Some(tokenizer) => generation.with_vocab_size(tokenizer.vocab_size())?,
            None => generation,
        };
        Ok((generation, cached))
    }
}
