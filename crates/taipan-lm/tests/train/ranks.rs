//! Several processes train to the bit what one does. Here they are threads, which exchange bytes
//! through channels; `taipan train` has tests with MPI.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};

use taipan::nn::Module;
use taipan::{DType, Device, Tensor};
use taipan_lm::data::{Dataset, Order};
use taipan_lm::{Lora, Ranks, Recipe, Result, StepReport, Tokenizer, Traffic, Trainer};

use crate::harness::{Run, files, steps};

/// A process that is a thread.
struct Thread {
    rank: usize,
    to: Vec<Sender<Vec<u8>>>,
    from: Vec<Receiver<Vec<u8>>>,
    begun: VecDeque<Vec<usize>>,
    sent: u64,
}

impl Thread {
    /// As many as there are to be.
    fn all(size: usize) -> Vec<Thread> {
        let mut channels: Vec<Vec<_>> =
            (0..size).map(|_| (0..size).map(|_| Some(channel())).collect()).collect();
        let mut ends: Vec<(Vec<_>, Vec<_>)> = (0..size).map(|_| (Vec::new(), Vec::new())).collect();
        for from in 0..size {
            for to in 0..size {
                let (sender, receiver) = channels[from][to].take().unwrap();
                ends[from].0.push(sender);
                ends[to].1.push(receiver);
            }
        }
        let thread =
            |(rank, (to, from))| Thread { rank, to, from, begun: VecDeque::new(), sent: 0 };
        ends.into_iter().enumerate().map(thread).collect()
    }
}

impl Ranks for Thread {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.to.len()
    }

    fn describe(&self, rank: usize) -> String {
        format!("thread {rank}")
    }

    fn all_gather(&mut self, own: &[u8], lens: &[usize]) -> Result<Vec<Vec<u8>>> {
        assert!(self.begun.is_empty());
        self.begin_exchange(vec![own.to_vec(); self.size()], lens)?;
        self.end_exchange()
    }

    fn begin_exchange(&mut self, to: Vec<Vec<u8>>, from: &[usize]) -> Result<()> {
        for (rank, (sender, bytes)) in self.to.iter().zip(to).enumerate() {
            self.sent += if rank == self.rank { 0 } else { bytes.len() as u64 };
            // One that has failed does not receive.
            let _ = sender.send(bytes);
        }
        self.begun.push_back(from.to_vec());
        Ok(())
    }

    fn end_exchange(&mut self) -> Result<Vec<Vec<u8>>> {
        let lens = self.begun.pop_front().unwrap();
        let gone = |_| taipan_lm::Error::invalid("thread", "another one has ended");
        let receive = |receiver: &Receiver<Vec<u8>>| receiver.recv().map_err(gone);
        let received = self.from.iter().map(receive).collect::<Result<Vec<_>>>()?;
        assert_eq!(received.iter().map(Vec::len).collect::<Vec<_>>(), lens);
        Ok(received)
    }

    fn traffic(&self) -> Traffic {
        Traffic { sent: self.sent, ..Traffic::default() }
    }
}

/// Run `lead` with the first of several processes that have these trainers; the others follow.
fn together<R: Send>(
    size: usize,
    reduce_dtype: Option<DType>,
    trainer: impl Fn() -> Trainer + Sync,
    lead: impl FnOnce(&mut Trainer) -> R + Send,
) -> (R, Vec<u64>) {
    let mut threads = Thread::all(size);
    let first = threads.remove(0);
    let join = |thread| {
        let joined = trainer().join(Box::new(thread), reduce_dtype);
        pollster::block_on(joined).unwrap()
    };
    let follow = |thread| {
        let mut trainer = join(thread);
        pollster::block_on(trainer.follow(|| false)).unwrap();
        trainer.traffic().sent
    };
    std::thread::scope(|scope| {
        let follow = &follow;
        let others: Vec<_> =
            threads.into_iter().map(|thread| scope.spawn(move || follow(thread))).collect();
        let mut trainer = join(first);
        let result = lead(&mut trainer);
        trainer.end().unwrap();
        let mut sent = vec![trainer.traffic().sent];
        sent.extend(others.into_iter().map(|other| other.join().unwrap()));
        (result, sent)
    })
}

/// Four steps, an evaluation and a checkpoint in `directory`.
fn lead(trainer: &mut Trainer, directory: &Path) -> Vec<StepReport> {
    let reports = steps(trainer, 4);
    pollster::block_on(trainer.evaluate(u64::MAX)).unwrap();
    trainer.save_blocking(directory, 2).unwrap();
    reports
}

fn same(a: &Path, b: &Path) {
    let (a, b) = (files(a), files(b));
    assert_eq!(a.keys().collect::<Vec<_>>(), b.keys().collect::<Vec<_>>());
    for (name, bytes) in a {
        assert!(b[&name] == bytes, "{name} differs");
    }
}

/// 12 batches per step in one process, and in 2, 3 and 4: every file is the same.
fn check(run: impl Fn() -> Run) {
    let mut alone = run();
    alone.recipe.grad_accum = 12;
    alone.data(crate::harness::TEXT);
    let trainer = || {
        let data = Dataset::open(alone.path().join("data")).unwrap();
        let recipe = alone.recipe.clone();
        Trainer::new(alone.model(), data, Tokenizer::bytes(), recipe).unwrap()
    };
    let expected = lead(&mut trainer(), alone.path());
    assert!(expected.iter().all(|report| report.loss.is_finite()));
    for size in [1, 2, 3, 4] {
        let directory = tempfile::tempdir().unwrap();
        let (reports, _) = together(size, None, trainer, |trainer| lead(trainer, directory.path()));
        assert_eq!(reports, expected, "{size} processes");
        same(&alone.checkpoint(4), &directory.path().join("checkpoint-4"));
    }
}

/// With a parameter of several blocks, and ranges of one process in several parameters.
fn larger() -> Run {
    let mut run = Run::new();
    run.config.hidden_size = 24;
    run
}

#[test]
fn in_f32_with_clipping() {
    check(|| {
        let mut run = larger();
        run.recipe.grad_clip = Some(0.1);
        run
    });
}

#[test]
fn in_f64() {
    check(|| Run { dtype: DType::F64, ..Run::new() });
}

#[test]
fn in_bf16_with_master_weights() {
    check(|| Run { dtype: DType::BF16, ..larger() });
}

#[test]
fn in_f16_with_a_loss_scale() {
    check(|| Run { dtype: DType::F16, ..Run::new() });
}

#[test]
fn with_frozen_parameters_and_recomputed_activations() {
    check(|| {
        let mut run = Run::new();
        run.config.tie_word_embeddings = false;
        run.recipe.freeze = vec!["backbone.layers.0.*".into()];
        run.recipe.activations = taipan_lm::Activations::Recomputed;
        run
    });
}

/// Most processes have nothing to update.
#[test]
fn with_less_to_train_than_processes() {
    check(|| {
        let mut run = Run::new();
        run.recipe.train_only = vec!["backbone.norm_f.weight".into()];
        run
    });
}

#[test]
fn with_adapters_and_dropout() {
    check(|| {
        let mut run = Run::new();
        run.recipe.lora = Some(Lora { dropout: 0.2, ..Lora::new(&run.config) });
        run
    });
}

#[test]
fn on_a_gpu() {
    for device in taipan::check::devices() {
        if device != Device::Cpu {
            check(|| Run { device: device.clone(), ..Run::new() });
        }
    }
}

/// A checkpoint of 4 processes is resumed by 1, 2 and 3, and one of 1 by 4.
#[test]
fn a_checkpoint_can_be_resumed_by_any_number() {
    for dtype in [DType::F32, DType::BF16] {
        let mut run = Run { dtype, ..larger() };
        run.recipe.grad_accum = 12;
        let mut whole = run.begin();
        let first = lead(&mut whole, run.path());
        let second = steps(&mut whole, 4);
        let trainer = || {
            let data = Dataset::open(run.path().join("data")).unwrap();
            Trainer::new(run.model(), data, Tokenizer::bytes(), run.recipe.clone()).unwrap()
        };
        for (before, after) in [(4, 1), (4, 2), (4, 3), (1, 4)] {
            let directory = tempfile::tempdir().unwrap();
            let (reports, _) =
                together(before, None, trainer, |trainer| lead(trainer, directory.path()));
            assert_eq!(reports, first);
            let resume = || {
                let data = Dataset::open(run.path().join("data")).unwrap();
                Trainer::resume(directory.path(), data, &run.device, |_| {}).unwrap()
            };
            let (reports, _) = together(after, None, resume, |trainer| steps(trainer, 4));
            assert_eq!(reports, second, "{dtype}: from {before} to {after}");
        }
    }
}

/// What travels: the gradient once and the parameters once, of which each process keeps its own
/// share, and a little for losses, norms and commands.
#[test]
fn a_step_sends_twice_the_gradient_at_most() {
    let mut run = Run::new();
    run.config.hidden_size = 64;
    for (size, dtype) in [(2, DType::F32), (4, DType::F32), (4, DType::BF16)] {
        run.dtype = dtype;
        run.recipe.grad_accum = size;
        run.data(crate::harness::TEXT);
        let gradient: usize =
            run.model().parameters().iter().map(|p| p.len() * p.dtype().size()).sum();
        let trainer = || {
            let data = Dataset::open(run.path().join("data")).unwrap();
            Trainer::new(run.model(), data, Tokenizer::bytes(), run.recipe.clone()).unwrap()
        };
        let ((), sent) = together(size, None, trainer, |trainer| drop(steps(trainer, 10)));
        let ratios = sent.iter().map(|sent| *sent as f64 / 10.0 / gradient as f64);
        let ratios: Vec<f64> = ratios.collect();
        let mean = ratios.iter().sum::<f64>() / size as f64;
        let least = 2.0 * (size - 1) as f64 / size as f64;
        assert!((least..1.1 * least).contains(&mean), "{ratios:?} with {size} in {dtype}");
        assert!(ratios.iter().all(|ratio| *ratio < 2.1), "{ratios:?} with {size} in {dtype}");
    }
}

#[test]
fn gradients_can_be_sent_in_fewer_bits() {
    let mut run = larger();
    run.recipe.grad_accum = 4;
    run.data(crate::harness::TEXT);
    let trainer = || {
        let data = Dataset::open(run.path().join("data")).unwrap();
        Trainer::new(run.model(), data, Tokenizer::bytes(), run.recipe.clone()).unwrap()
    };
    let lead = |trainer: &mut Trainer| steps(trainer, 10);
    let (exact, all) = together(4, None, trainer, lead);
    let (rounded, fewer) = together(4, Some(DType::BF16), trainer, lead);
    assert!(fewer[0] < all[0] * 4 / 5, "{} of {}", fewer[0], all[0]);
    assert_ne!(exact, rounded);
    for (a, b) in exact.iter().zip(&rounded) {
        assert!((a.loss - b.loss).abs() < 1e-2 * a.loss, "{} and {}", a.loss, b.loss);
    }
}

#[test]
fn processes_that_differ_are_refused() {
    let run = Run::new();
    run.data(crate::harness::TEXT);
    let error = |change: fn(&mut Run), accum: usize| {
        let threads = Thread::all(2);
        let join = |thread: Thread| {
            let mut other = Run { recipe: run.recipe.clone(), ..Run::new() };
            other.recipe.grad_accum = accum;
            if thread.rank == 1 {
                change(&mut other);
            }
            let data = Dataset::open(run.path().join("data")).unwrap();
            let recipe = other.recipe.clone();
            let trainer = Trainer::new(other.model(), data, Tokenizer::bytes(), recipe).unwrap();
            let joined = pollster::block_on(trainer.join(Box::new(thread), None));
            joined.err().map(|error| error.to_string())
        };
        let join = &join;
        std::thread::scope(|scope| {
            let both: Vec<_> =
                threads.into_iter().map(|thread| scope.spawn(move || join(thread))).collect();
            let errors: Vec<_> = both.into_iter().map(|thread| thread.join().unwrap()).collect();
            assert_eq!(errors[0], errors[1], "both know");
            errors[0].clone()
        })
    };
    assert_eq!(error(|_| {}, 2), None);
    let odd = error(|_| {}, 3).unwrap();
    assert_eq!(odd, "recipe: grad_accum is 3, expected a multiple of 2, the number of ranks");
    let recipe = error(|run| run.recipe = Recipe { eps: 1e-7, ..run.recipe.clone() }, 2).unwrap();
    assert!(recipe.starts_with("thread 1: the recipe is {"), "{recipe}");
    let model = error(|run| run.config.layers.truncate(1), 2).unwrap();
    assert!(model.starts_with("thread 1: the model is "), "{model}");
}

/// Of a token that few batches have, the embedding is no number.
#[test]
fn a_loss_that_is_not_finite_names_its_process() {
    let mut run = Run::new();
    run.config.tie_word_embeddings = false;
    run.recipe.grad_accum = 2;
    let data = run.data(crate::harness::TEXT);
    let rare = u32::from(b'T');
    let trainer = || {
        let mut model = run.model();
        for (name, parameter) in model.parameters_mut() {
            if name == "backbone.embeddings.weight" {
                let mut table = parameter.detached();
                let row = Tensor::full(&[1, 16], f64::NAN, DType::F32, &Device::Cpu).unwrap();
                table.write_slice(0, rare as usize, &row).unwrap();
                *parameter = table.tracked();
            }
        }
        let data = Dataset::open(run.path().join("data")).unwrap();
        Trainer::new(model, data, Tokenizer::bytes(), run.recipe.clone()).unwrap()
    };
    let Recipe { seed, batch_size, block_size, .. } = run.recipe;
    let order = Order { seed, batch_size, block_size };
    let has_it = |batch: &u64| data.batch(&order, *batch).unwrap().ids.contains(&rare);
    let first = (0..300).find(has_it).expect("in some batch");
    // In the first process it would be what is found without looking.
    let (step, rank) = (first / 2 + 1, first % 2);
    assert!(rank > 0, "batch {first}");
    let (error, _) = together(2, None, trainer, |trainer| {
        let steps = (0..step).find_map(|_| pollster::block_on(trainer.step()).err());
        steps.expect("an error").to_string()
    });
    let expected =
        format!("step {step}: the loss of thread {rank} is NaN, expected a finite number");
    assert_eq!(error, expected);
}
