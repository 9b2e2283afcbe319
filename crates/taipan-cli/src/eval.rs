//! `taipan eval`.

use std::fmt;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};

use pollster::block_on;
use serde::{Deserialize, Serialize};
use taipan_lm::data::{Encoding, FindOptions, Reason, Skipped};
use taipan_lm::{Error, Score, Scorer, Tokenizer, WindowScorer};

use crate::model::{Model, ModelFlags};
use crate::{Failure, machine, usage};

/// What to measure.
#[derive(clap::Args)]
pub struct Flags {
    #[command(flatten)]
    model: ModelFlags,
    /// Text: files (UTF-8, .jsonl, .gz, .zst), directories, globs, - for standard input
    #[arg(value_name = "FILES")]
    files: Vec<PathBuf>,
    /// Key of the text in .jsonl files, or its column in .parquet files
    #[arg(long, value_name = "KEY", default_value = "text")]
    text_key: String,
    /// Refuse files that are not UTF-8, which are skipped otherwise
    #[arg(long)]
    strict: bool,
    /// A file with a list of token ids per line, for example [5, 9, 2]
    #[arg(long, value_name = "FILE.jsonl", conflicts_with = "files")]
    ids: Option<PathBuf>,
    /// A file with a question per line: {"prompt": …, "choices": […], "answer": a choice, or its
    /// number from 0}
    #[arg(long, value_name = "FILE.jsonl", conflicts_with_all = ["files", "ids", "window"])]
    choices: Option<PathBuf>,
    /// Evaluate in windows of N tokens, without state between them
    #[arg(long, value_name = "N")]
    window: Option<usize>,
    /// Tokens between the starts of windows [default: --window]
    #[arg(long, value_name = "N", requires = "window")]
    stride: Option<usize>,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

/// Measure a model.
pub fn eval(flags: &Flags) -> Result<(), Failure> {
    if let Some(window) = flags.window
        && window < 2
    {
        return usage(format!("--window is {window}, expected 2 or more"));
    }
    if let (Some(window), Some(stride)) = (flags.window, flags.stride)
        && !(1..=window).contains(&stride)
    {
        return usage(format!("--stride is {stride}, expected 1 to --window, {window}"));
    }
    if flags.files.is_empty() && flags.ids.is_none() && flags.choices.is_none() {
        return usage("nothing to measure, expected FILES, --ids or --choices");
    }
    machine::with_threads(None, || {
        let model = flags.model.load()?;
        if let Some(path) = &flags.choices {
            return crate::print_report(&choices(&model, path)?, flags.json);
        }
        let scores = match &flags.ids {
            Some(path) => ids(flags, &model, path)?,
            None => texts(flags, &model)?,
        };
        crate::print_report(&scores, flags.json)
    })
}

/// The keys of `--json` are these fields.
#[derive(Serialize)]
struct Report {
    /// The mean of `−ln p(token)`.
    loss: f64,
    perplexity: f64,
    bits_per_byte: Option<f64>,
    /// Tokens that were predicted, and their bytes of text.
    tokens: u64,
    bytes: u64,
    /// Files, or lines of ids.
    documents: u64,
}

impl Report {
    fn new(score: Score, documents: u64) -> Result<Report, Failure> {
        let Score { tokens, bytes, .. } = score;
        if tokens == 0 {
            return Err("nothing to predict, expected two tokens or more".into());
        }
        let (loss, perplexity, bits_per_byte) =
            (score.loss(), score.perplexity(), score.bits_per_byte());
        if !loss.is_finite() {
            return Err(format!("the loss is {loss}, expected a finite number").into());
        }
        Ok(Report { loss, perplexity, bits_per_byte, tokens, bytes, documents })
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Report { loss, perplexity, bits_per_byte, tokens, documents, .. } = self;
        writeln!(f, "loss           {loss:.4} nats per token")?;
        writeln!(f, "perplexity     {perplexity:.3}")?;
        if let Some(bits) = bits_per_byte {
            writeln!(f, "bits per byte  {bits:.4}")?;
        }
        writeln!(f, "tokens         {tokens} in {documents} documents")
    }
}

/// The score of a text, through the state or through windows.
enum AnyScorer<'m> {
    State(Scorer<'m>),
    Windows(WindowScorer<'m>),
}

impl<'m> AnyScorer<'m> {
    fn new(flags: &Flags, model: &'m Model) -> Result<AnyScorer<'m>, Failure> {
        Ok(match flags.window {
            None => AnyScorer::State(Scorer::new(&model.lm)),
            Some(window) => {
                let stride = flags.stride.unwrap_or(window);
                AnyScorer::Windows(WindowScorer::new(&model.lm, window, stride)?)
            }
        })
    }

    fn push(&mut self, ids: &[u32], bytes: &[usize]) -> Result<(), Failure> {
        Ok(match self {
            AnyScorer::State(scorer) => block_on(scorer.push(ids, bytes)),
            AnyScorer::Windows(scorer) => block_on(scorer.push(ids, bytes)),
        }?)
    }

    fn finish(self) -> Result<Score, Failure> {
        Ok(match self {
            AnyScorer::State(scorer) => block_on(scorer.finish()),
            AnyScorer::Windows(scorer) => block_on(scorer.finish()),
        }?)
    }
}

fn texts(flags: &Flags, model: &Model) -> Result<Report, Failure> {
    let tokenizer = model.require_tokenizer("--ids")?;
    let encoding = if flags.strict { Encoding::Strict } else { Encoding::Skip };
    let text_key = flags.text_key.clone();
    let sources =
        FindOptions { text_key, encoding, ..FindOptions::default() }.find(&flags.files)?;
    for Skipped { path, reason } in sources.skipped() {
        if matches!(reason, Reason::NotUtf8 { .. }) {
            let _ = writeln!(std::io::stderr(), "taipan: skipped {}: {reason}", path.display());
        }
    }
    let mut total = Score::default();
    for document in 0..sources.len() {
        let mut scorer = AnyScorer::new(flags, model)?;
        if let (AnyScorer::State(scorer), Some(eos)) = (&mut scorer, tokenizer.eos_token_id()) {
            block_on(scorer.context(&[eos]))?;
        }
        for encoded in sources.encoded(document, tokenizer)? {
            let (ids, bytes) = encoded?;
            scorer.push(&ids, &bytes)?;
        }
        total += scorer.finish()?;
    }
    Report::new(total, sources.len() as u64)
}

fn ids(flags: &Flags, model: &Model, path: &Path) -> Result<Report, Failure> {
    let (mut total, mut documents) = (Score::default(), 0);
    for line in lines::<Vec<u32>>(path)? {
        let (name, ids) = line?;
        let mut scorer = AnyScorer::new(flags, model)?;
        let pushed = scorer.push(&ids, &[]).and_then(|()| scorer.finish());
        total += pushed.map_err(|error| format!("{name}: {error}"))?;
        documents += 1;
    }
    Report::new(total, documents)
}

/// A line of `--choices`.
#[derive(Deserialize)]
struct Question {
    prompt: String,
    choices: Vec<String>,
    answer: Answer,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Answer {
    Number(usize),
    Choice(String),
}

impl Question {
    /// The number of the right choice.
    fn answer(&self) -> Result<usize, String> {
        let count = self.choices.len();
        match &self.answer {
            Answer::Number(answer) if *answer < count => Ok(*answer),
            Answer::Number(answer) => {
                Err(format!("answer is {answer}, expected less than {count}"))
            }
            Answer::Choice(answer) => {
                let found = self.choices.iter().position(|choice| choice == answer);
                found.ok_or_else(|| format!("answer is {answer:?}, expected one of the choices"))
            }
        }
    }
}

/// The keys of `--json` are these fields.
#[derive(Serialize)]
struct Accuracy {
    /// How often the likeliest choice is the answer.
    acc: f64,
    /// The same, with the log-probability divided by the number of characters of the choice.
    acc_norm: f64,
    questions: u64,
}

impl fmt::Display for Accuracy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "accuracy             {:.4}", self.acc)?;
        writeln!(f, "normalised accuracy  {:.4}", self.acc_norm)?;
        writeln!(f, "questions            {}", self.questions)
    }
}

/// As lm-evaluation-harness counts.
fn choices(model: &Model, path: &Path) -> Result<Accuracy, Failure> {
    let tokenizer = model.require_tokenizer("--ids")?;
    let (mut right, mut right_norm, mut questions) = (0, 0, 0);
    for line in lines::<Question>(path)? {
        let (name, question) = line?;
        let answer = question.answer().map_err(|error| format!("{name}: {error}"))?;
        let scores =
            answers(model, tokenizer, &question).map_err(|error| format!("{name}: {error}"))?;
        let lengths = question.choices.iter().map(|choice| choice.chars().count() as f64);
        let normed: Vec<f64> = scores.iter().zip(lengths).map(|(score, n)| score / n).collect();
        right += u64::from(largest(&scores) == answer);
        right_norm += u64::from(largest(&normed) == answer);
        questions += 1;
    }
    if questions == 0 {
        return Err(format!("{}: no questions in it", path.display()).into());
    }
    let share = |right: u64| right as f64 / questions as f64;
    Ok(Accuracy { acc: share(right), acc_norm: share(right_norm), questions })
}

/// The index of the first largest number.
fn largest(numbers: &[f64]) -> usize {
    let better = |best: usize, i: usize| if numbers[i] > numbers[best] { i } else { best };
    (0..numbers.len()).fold(0, better)
}

/// `ln p` of each choice after the prompt. A space comes between them, unless there is white space;
/// what ends the prompt belongs to the choice, since tokens begin with it.
fn answers(model: &Model, tokenizer: &Tokenizer, question: &Question) -> Result<Vec<f64>, Failure> {
    let context = question.prompt.trim_end();
    let space = &question.prompt[context.len()..];
    let eos = tokenizer.eos_token_id();
    let ids = tokenizer.encode(context)?;
    let mut scorer = Scorer::new(&model.lm);
    block_on(scorer.context(&eos.into_iter().chain(ids.iter().copied()).collect::<Vec<_>>()))?;
    block_on(scorer.flush())?;
    let mut scores = Vec::new();
    for choice in &question.choices {
        let is_apart = !space.is_empty() || choice.starts_with(char::is_whitespace);
        let delimiter = if is_apart { "" } else { " " };
        let whole = tokenizer.encode(&format!("{context}{space}{delimiter}{choice}"))?;
        let mut scorer = scorer.clone();
        let rest = whole.get(ids.len()..).filter(|rest| !rest.is_empty());
        let rest = rest.ok_or("a choice adds no token to the prompt, expected one or more")?;
        block_on(scorer.push(rest, &[]))?;
        scores.push(-block_on(scorer.finish())?.nats);
    }
    Ok(scores)
}

/// The lines of a file, each a JSON document, with the name of the line for messages. Empty ones are
/// skipped.
fn lines<T: for<'de> Deserialize<'de>>(
    path: &Path,
) -> Result<impl Iterator<Item = Result<(String, T), Failure>>, Failure> {
    let file = File::open(path).map_err(Error::io(path))?;
    let path = path.to_owned();
    let parse = move |(i, line): (usize, std::io::Result<String>)| {
        let name = format!("{}:{}", path.display(), i + 1);
        let parse = |line: String| -> Result<Option<(String, T)>, Failure> {
            if line.trim().is_empty() {
                return Ok(None);
            }
            let value = serde_json::from_str(&line).map_err(|error| format!("{name}: {error}"))?;
            Ok(Some((name.clone(), value)))
        };
        line.map_err(|error| format!("{name}: {error}").into()).and_then(parse).transpose()
    };
    Ok(BufReader::new(file).lines().enumerate().filter_map(parse))
}
