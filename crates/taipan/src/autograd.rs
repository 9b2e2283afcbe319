//! Reverse-mode differentiation.
//!
//! An operation on a tracked tensor leaves a node that knows how to carry the result's gradient
//! back to the inputs. Node ids only grow, so visiting pending nodes from the highest id down is
//! a valid order: no sort, no recursion.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::error::{Error, Result, ensure};
use crate::grad_mode::{self, GradMode};
use crate::kernel::{Kernel, Results, run, run_one, run_saving};
use crate::nn::{Module, unmatched};
use crate::ops::binary::Binary;
use crate::spec::Spec;
use crate::tensor::Tensor;
use crate::terms::{Terms, sum_all};

/// A differentiable kernel.
pub(crate) trait Op: Kernel + Send + 'static {
    /// Whether to save this tensor for backward, given which inputs need a gradient. Tensors that
    /// are not saved are freed as soon as the caller drops them.
    fn saves(&self, slot: Slot, needs: &[bool]) -> bool;

    /// The gradient of each input, in order, given those of the results. Where `saved.needs[i]` is
    /// false, the gradient may be absent; it is absent where it is left in terms
    /// ([`Saved::sum_later`]).
    fn backward(&self, saved: &mut Saved, dys: &[Tensor]) -> Result<Vec<Option<Tensor>>>;
}

/// An input or a result of an op.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Slot {
    /// The input with this index.
    Input(usize),
    /// The result with this index.
    Output(usize),
}

/// What is saved for backward.
pub(crate) struct Saved {
    /// The specs of all inputs.
    pub(crate) specs: Vec<Spec>,
    /// Which inputs need a gradient.
    pub(crate) needs: Vec<bool>,
    inputs: Vec<Option<Tensor>>,
    outputs: Vec<Option<Tensor>>,
    exchange: Exchange,
}

/// What an op's backward and the pass through the graph exchange besides gradients.
#[derive(Default)]
pub(crate) struct Exchange {
    /// For each input, its gradient from other ops.
    earlier: Vec<Option<Tensor>>,
    /// Inputs, and the terms of their gradients.
    unsummed: Vec<(usize, Terms)>,
}

impl Saved {
    /// An input for which [`Op::saves`] is true.
    pub(crate) fn input(&self, i: usize) -> &Tensor {
        self.inputs[i].as_ref().expect("backward reads only inputs it saves")
    }

    /// A result for which [`Op::saves`] is true; after the results, the tensors of
    /// [`Kernel::saved_specs`].
    pub(crate) fn output(&self, i: usize) -> &Tensor {
        self.outputs[i].as_ref().expect("backward reads only results it saves")
    }

    /// The same by value: a tensor of [`Kernel::saved_specs`] is not shared, and can be
    /// overwritten.
    pub(crate) fn take_output(&mut self, i: usize) -> Tensor {
        self.outputs[i].take().expect("backward takes only results it saves, and once")
    }

    /// The gradient that an input has from other ops, if there is one. Who takes it must add it to
    /// the gradient it returns: a kernel may do this in the same pass.
    pub(crate) fn take_earlier(&mut self, i: usize) -> Option<Tensor> {
        self.exchange.earlier[i].take()
    }

    /// Leave the gradient of an input in terms, instead of returning it.
    pub(crate) fn sum_later(&mut self, i: usize, terms: Terms) {
        self.exchange.unsummed.push((i, terms));
    }

    /// [`Op::backward`], and what it exchanges with the pass through the graph.
    fn backward(
        mut self,
        op: &dyn Op,
        dys: &[Tensor],
        exchange: &mut Exchange,
    ) -> Result<Vec<Option<Tensor>>> {
        self.exchange = std::mem::take(exchange);
        let grads = op.backward(&mut self, dys);
        *exchange = self.exchange;
        grads
    }
}

/// The gradients of the inputs, given those of the results.
pub(crate) type BackwardFn =
    Box<dyn FnOnce(&[Tensor], &mut Exchange) -> Result<Vec<Option<Tensor>>> + Send>;

/// An operation of the graph, or one of its leaves.
pub(crate) struct Node {
    id: u64,
    inputs: Vec<Option<Edge>>,
    step: Option<Step>,
}

/// The backward step of a node that is not a leaf.
struct Step {
    op: &'static str,
    results: Vec<Spec>,
    /// Taken by the first backward, which frees what was saved.
    backward: Mutex<Option<BackwardFn>>,
}

/// One result of a node.
#[derive(Clone)]
pub(crate) struct Edge {
    node: Arc<Node>,
    output: usize,
}

impl Edge {
    pub(crate) fn leaf() -> Edge {
        Edge { node: Node::new(Vec::new(), None), output: 0 }
    }
}

impl Node {
    fn new(inputs: Vec<Option<Edge>>, step: Option<Step>) -> Arc<Node> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Arc::new(Node { id: NEXT.fetch_add(1, Ordering::Relaxed), inputs, step })
    }
}

/// Long graphs are dropped in a loop: recursion would overflow the stack.
impl Drop for Node {
    fn drop(&mut self) {
        let mut edges = std::mem::take(&mut self.inputs);
        while let Some(edge) = edges.pop() {
            if let Some(mut node) = edge.and_then(|edge| Arc::into_inner(edge.node)) {
                edges.append(&mut node.inputs);
            }
        }
    }
}

/// Run `op` and, if an input is tracked, add it to the graph.
pub(crate) fn apply<O: Op>(op: O, inputs: &[&Tensor]) -> Result<Results<Tensor>> {
    let (mut results, saved) = forward(&op, inputs)?;
    if let Some(saved) = saved {
        let name = op.name();
        let backward =
            move |dys: &[Tensor], exchange: &mut Exchange| saved.backward(&op, dys, exchange);
        add_node(name, inputs, &mut results, backward);
    }
    Ok(results)
}

/// The results of `op` and, if an input is tracked, what its backward needs.
fn forward(op: &dyn Op, inputs: &[&Tensor]) -> Result<(Results<Tensor>, Option<Saved>)> {
    if !needs_node(inputs) {
        return Ok((run(op, inputs)?, None));
    }
    let needs: Vec<bool> = inputs.iter().map(|t| t.edge.is_some()).collect();
    let (results, extra_saved) = run_saving(op, inputs)?;
    let save = |t: &Tensor, slot| op.saves(slot, &needs).then(|| t.detached());
    let saved = Saved {
        inputs: inputs.iter().enumerate().map(|(i, t)| save(t, Slot::Input(i))).collect(),
        outputs: results
            .iter()
            .enumerate()
            .map(|(i, t)| save(t, Slot::Output(i)))
            .chain(extra_saved.into_iter().map(Some))
            .collect(),
        specs: inputs.iter().map(|t| t.spec.clone()).collect(),
        needs: needs.clone(),
        exchange: Exchange::default(),
    };
    Ok((results, Some(saved)))
}

/// Make `results` the results of a node with these inputs, if grad mode is enabled and one of them
/// is tracked.
pub(crate) fn add_node(
    op: &'static str,
    inputs: &[&Tensor],
    results: &mut [Tensor],
    backward: impl FnOnce(&[Tensor], &mut Exchange) -> Result<Vec<Option<Tensor>>> + Send + 'static,
) {
    if needs_node(inputs) {
        let specs = results.iter().map(|t| t.spec.clone()).collect();
        let backward: BackwardFn = Box::new(backward);
        let step = Step { op, results: specs, backward: Mutex::new(Some(backward)) };
        let edges = inputs.iter().map(|t| t.edge.clone()).collect();
        let node = Node::new(edges, Some(step));
        for (output, result) in results.iter_mut().enumerate() {
            result.edge = Some(Edge { node: node.clone(), output });
        }
    }
}

/// Whether an op of these inputs is added to the graph.
fn needs_node(inputs: &[&Tensor]) -> bool {
    grad_mode::is_enabled() && inputs.iter().any(|t| t.edge.is_some())
}

/// [`apply`] an op with one result.
pub(crate) fn apply_one<O: Op>(op: O, inputs: &[&Tensor]) -> Result<Tensor> {
    Ok(apply(op, inputs)?.swap_remove(0))
}

/// Run `f` with grad mode disabled: its results are not tracked, and nothing is saved for backward.
/// This applies to the current thread, not to others that `f` starts or hands work to.
///
/// ```
/// use taipan::{Device, Tensor, no_grad};
///
/// let w = Tensor::new(&[1f32, 2.0], &[2], &Device::Cpu)?.tracked();
/// let y = no_grad(|| w.exp())?;
/// assert!(!y.is_tracked());
/// # Ok::<(), taipan::Error>(())
/// ```
pub fn no_grad<R>(f: impl FnOnce() -> R) -> R {
    grad_mode::with(GradMode::Disabled, f)
}

/// The gradients of the tracked leaves, as [`Tensor::backward`] returns them.
#[derive(Debug, Default)]
pub struct Grads(HashMap<u64, Tensor>);

impl Grads {
    /// The gradient of a tracked leaf. If there is none, the error says why: a silently missing
    /// gradient would look like slow learning.
    pub fn of(&self, leaf: &Tensor) -> Result<&Tensor> {
        let why = match &leaf.edge {
            None => "the tensor is not tracked",
            Some(edge) if edge.node.step.is_some() => {
                "the tensor is not a leaf; gradients are kept for tracked leaves only"
            }
            Some(edge) => match self.0.get(&edge.node.id) {
                Some(grad) => return Ok(grad),
                None => "the result does not depend on the tensor",
            },
        };
        Err(Error::Gradient { op: "grads", why: why.into() })
    }

    /// The gradient of the parameter of a module that has this name.
    ///
    /// ```
    /// use taipan::nn::{Initializer, Linear};
    /// use taipan::{DType, Device, Tensor};
    ///
    /// let layer = Linear::new(2, 3, &mut Initializer::new(1, DType::F32, &Device::Cpu))?;
    /// let y = layer.forward(&Tensor::ones(&[4, 2], DType::F32, &Device::Cpu)?)?;
    /// let grads = y.sum()?.backward()?;
    /// assert_eq!(grads.named(&layer, "bias")?.read_blocking::<f32>()?, [4.0; 3]);
    /// # Ok::<(), taipan::Error>(())
    /// ```
    pub fn named(&self, module: &(impl Module + ?Sized), name: &str) -> Result<&Tensor> {
        let found = module.parameters().into_iter().find(|(found, _)| found == name);
        let (_, tensor) = found.ok_or_else(|| unmatched("grads", name, module))?;
        self.of(tensor)
    }

    /// The same gradients, each changed by `f`, which must not change its shape: scaled, for
    /// example, or rounded to another type.
    ///
    /// ```
    /// use taipan::{Device, Tensor};
    ///
    /// let w = Tensor::new(&[1f32, 2.0], &[2], &Device::Cpu)?.tracked();
    /// let grads = w.sum()?.backward()?.map(|grad| grad.scale(0.5))?;
    /// assert_eq!(grads.of(&w)?.read_blocking::<f32>()?, [0.5, 0.5]);
    /// # Ok::<(), taipan::Error>(())
    /// ```
    pub fn map(self, mut f: impl FnMut(&Tensor) -> Result<Tensor>) -> Result<Grads> {
        let changed = |(id, grad): (u64, Tensor)| {
            let new = f(&grad)?;
            let (found, expected) = (new.shape(), grad.shape());
            ensure!("grads", found == expected, "a gradient is {found:?}, expected {expected:?}");
            Ok((id, new.detached()))
        };
        Ok(Grads(self.0.into_iter().map(changed).collect::<Result<_>>()?))
    }

    /// Add a gradient of the leaf with this id.
    fn add(&mut self, id: u64, grad: Tensor) -> Result<()> {
        let sum = match self.0.get(&id) {
            Some(earlier) => run_one(&Binary::Add, &[earlier, &grad])?,
            None => grad,
        };
        self.0.insert(id, sum);
        Ok(())
    }

    /// Add the sums of these terms, which are drained.
    fn add_sums(&mut self, unsummed: &mut Vec<(u64, Terms)>) -> Result<()> {
        if unsummed.is_empty() {
            return Ok(());
        }
        let (ids, terms): (Vec<u64>, Vec<Terms>) = unsummed.drain(..).unzip();
        ids.into_iter().zip(sum_all(&terms)?).try_for_each(|(id, sum)| self.add(id, sum))
    }

    /// Remove and return the gradient of a tracked leaf, if there is one.
    pub(crate) fn take(&mut self, leaf: &Tensor) -> Option<Tensor> {
        self.0.remove(&leaf.edge.as_ref()?.node.id)
    }

    /// Add the gradients of another backward pass: gradient accumulation over micro-batches. Sums
    /// of f16 and bf16 are f32, so that they are not rounded. A leaf that only one of the two has
    /// keeps its gradient.
    ///
    /// ```
    /// use taipan::{Device, Tensor};
    ///
    /// let w = Tensor::new(&[1f32, 2.0], &[2], &Device::Cpu)?.tracked();
    /// let mut grads = w.sum()?.backward()?;
    /// grads.accumulate(w.mul(&w)?.sum()?.backward()?)?;
    /// assert_eq!(grads.of(&w)?.read_blocking::<f32>()?, [3.0, 5.0]);
    /// # Ok::<(), taipan::Error>(())
    /// ```
    pub fn accumulate(&mut self, other: Grads) -> Result<()> {
        for (id, grad) in other.0 {
            let sum = match self.0.get(&id) {
                Some(earlier) => {
                    let wide = grad.dtype().wider();
                    run_one(&Binary::Add, &[&earlier.cast(wide)?, &grad.cast(wide)?])?
                }
                None => grad,
            };
            self.0.insert(id, sum);
        }
        Ok(())
    }
}

impl Tensor {
    /// The same values as a leaf whose gradient [`backward`](Tensor::backward) returns. Only
    /// floats can have one: an integer tensor comes back untracked.
    pub fn tracked(mut self) -> Tensor {
        self.edge = self.dtype().is_float().then(Edge::leaf);
        self
    }

    /// The same values, detached from the graph.
    pub fn detached(&self) -> Tensor {
        Tensor { edge: None, ..self.clone() }
    }

    /// Whether a gradient can flow back through this tensor.
    pub fn is_tracked(&self) -> bool {
        self.edge.is_some()
    }

    /// The gradients of this one-element tensor, a loss, with respect to every tracked leaf it
    /// depends on.
    ///
    /// This consumes the graph and frees what was saved for backward.
    ///
    /// ```
    /// use taipan::{Device, Tensor};
    ///
    /// let x = Tensor::new(&[1f32, 2.0, 3.0], &[3], &Device::Cpu)?.tracked();
    /// let loss = x.mul(&x)?.sum()?;
    /// let grads = loss.backward()?;
    /// assert_eq!(grads.of(&x)?.read_blocking::<f32>()?, [2.0, 4.0, 6.0]);
    /// # Ok::<(), taipan::Error>(())
    /// ```
    pub fn backward(&self) -> Result<Grads> {
        if self.len() != 1 {
            let why = format!(
                "the tensor is {:?}, expected one element (or an upstream: backward_from)",
                self.shape()
            );
            return Err(Error::Gradient { op: "backward", why });
        }
        self.backward_from(&Tensor::ones(self.shape(), self.dtype(), self.device())?)
    }

    /// [`backward`](Tensor::backward) from any tensor, given `dy`, the upstream gradient, of the
    /// same shape and type.
    pub fn backward_from(&self, dy: &Tensor) -> Result<Grads> {
        self.check_upstream(dy)?;
        backward_of([(self.clone(), dy.detached())])
    }

    /// [`backward_from`](Tensor::backward_from) that hands the gradient of each of these leaves to
    /// `ready`, with its index, as soon as it is complete: the last layer's first. So it can be
    /// sent to another machine, for example, while those of earlier layers are computed.
    ///
    /// ```
    /// use taipan::{Device, Tensor};
    ///
    /// let [a, b] = [2f32, 3.0].map(|x| Tensor::new(&[x], &[1], &Device::Cpu).unwrap().tracked());
    /// let loss = a.exp()?.mul(&b)?.sum()?;
    /// let (upstream, mut order) = (Tensor::new(&[1f32], &[], &Device::Cpu)?, Vec::new());
    /// loss.backward_each(&upstream, &[&a, &b], |leaf, _grad| {
    ///     order.push(leaf);
    ///     Ok::<(), taipan::Error>(())
    /// })?;
    /// assert_eq!(order, [1, 0]);
    /// # Ok::<(), taipan::Error>(())
    /// ```
    pub fn backward_each<E: From<Error>>(
        &self,
        dy: &Tensor,
        leaves: &[&Tensor],
        mut ready: impl FnMut(usize, Tensor) -> Result<(), E>,
    ) -> Result<(), E> {
        self.check_upstream(dy)?;
        let id = |leaf: &Tensor| leaf.edge.as_ref().map(|edge| edge.node.id);
        let ids = leaves.iter().enumerate().filter_map(|(i, leaf)| Some((id(leaf)?, i)));
        let mut left: HashMap<u64, usize> = ids.collect();
        let pending = Pending::of([(self.clone(), dy.detached())])?;
        let mut early = Early::new(&pending, |id, grad| match left.remove(&id) {
            Some(leaf) => ready(leaf, grad),
            None => Ok(()),
        });
        let mut grads = propagate(pending, Some(&mut early))?;
        // The rest, and an error for a leaf without a gradient.
        for (i, leaf) in leaves.iter().enumerate() {
            if id(leaf).is_none_or(|id| left.contains_key(&id)) {
                grads.of(leaf)?;
                ready(i, grads.take(leaf).expect("it is there"))?;
            }
        }
        Ok(())
    }

    /// An error unless `dy` can be the upstream gradient of this tensor.
    fn check_upstream(&self, dy: &Tensor) -> Result<()> {
        const OP: &str = "backward";
        let (found, expected) = (dy.shape(), self.shape());
        ensure!(OP, found == expected, "the upstream is {found:?}, expected {expected:?}");
        dy.dtype().ensure(self.dtype(), OP, "the upstream")?;
        dy.device().ensure(self.device(), OP, "the upstream")?;
        if self.edge.is_none() {
            let why = "the tensor does not depend on any tracked tensor".into();
            return Err(Error::Gradient { op: OP, why });
        }
        Ok(())
    }
}

/// The gradients of the leaves that several tensors depend on, each with its upstream. The tensors
/// are dropped first, so that saved tensors can be freed as soon as they are used.
pub(crate) fn backward_of(roots: impl IntoIterator<Item = (Tensor, Tensor)>) -> Result<Grads> {
    propagate(Pending::of(roots)?, None::<&mut Early<fn(u64, Tensor) -> Result<()>>>)
}

/// Leaves whose gradients are handed over as soon as they are complete.
struct Early<F> {
    /// How many uses of each leaf have not been propagated yet.
    uses: HashMap<u64, usize>,
    ready: F,
}

impl<F> Early<F> {
    /// Of all leaves that pending nodes depend on.
    fn new(pending: &Pending, ready: F) -> Early<F> {
        let (mut uses, mut seen) = (HashMap::new(), HashSet::new());
        let mut nodes: Vec<&Arc<Node>> = pending.0.values().map(|(node, _)| node).collect();
        while let Some(node) = nodes.pop() {
            if !seen.insert(node.id) {
                continue;
            }
            for input in node.inputs.iter().flatten() {
                match input.node.step {
                    None => *uses.entry(input.node.id).or_insert(0) += 1,
                    Some(_) => nodes.push(&input.node),
                }
            }
        }
        Early { uses, ready }
    }

    /// Count a use of a leaf; whether it was the last.
    fn use_up(&mut self, leaf: u64) -> bool {
        let left = self.uses.get_mut(&leaf).expect("each leaf was counted");
        *left -= 1;
        *left == 0
    }
}

/// Propagate pending gradients to the leaves. What is not handed over early is returned.
fn propagate<E: From<Error>>(
    mut pending: Pending,
    mut early: Option<&mut Early<impl FnMut(u64, Tensor) -> Result<(), E>>>,
) -> Result<Grads, E> {
    let mut grads = Grads::default();
    // Gradients of leaves, in terms; they are summed when one launch can sum no more of them.
    let mut unsummed: Vec<(u64, Terms)> = Vec::new();
    // Gradients of results that were not used: one for each spec.
    let mut zeros: Vec<Tensor> = Vec::new();
    while let Some((id, (node, mut dys))) = pending.0.pop_last() {
        let Some(step) = &node.step else {
            grads.add(id, dys.swap_remove(0).expect("a pending leaf has a gradient"))?;
            continue;
        };
        let backward = step.backward.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(backward) = backward else {
            let why = format!("the graph of {} was used by an earlier backward", step.op);
            return Err(Error::Gradient { op: "backward", why }.into());
        };
        let given = dys.iter().flatten().next().expect("a pending step has a gradient");
        let device = given.device().clone();
        let dys = dys
            .into_iter()
            .zip(&step.results)
            .map(|(dy, spec)| {
                let same = |zeros: &&Tensor| zeros.spec == *spec && *zeros.device() == device;
                if let Some(dy) = dy.or_else(|| zeros.iter().find(same).cloned()) {
                    return Ok(dy);
                }
                zeros.push(Tensor::zeros(spec.shape(), spec.dtype(), &device)?);
                Ok(zeros[zeros.len() - 1].clone())
            })
            .collect::<Result<Vec<_>>>()?;
        let earlier = |input: &Option<Edge>| pending.get(input.as_ref()?).cloned();
        let earlier: Vec<_> = node.inputs.iter().map(earlier).collect();
        let given: Vec<bool> = earlier.iter().map(Option::is_some).collect();
        let mut exchange = Exchange { earlier, unsummed: Vec::new() };
        let dxs = backward(&dys, &mut exchange)?;
        let Exchange { earlier, unsummed: terms } = exchange;
        let taken = given.into_iter().zip(&earlier).map(|(given, left)| given && left.is_none());
        for ((input, dx), taken) in node.inputs.iter().zip(dxs).zip(taken) {
            if let (Some(input), Some(dx)) = (input, dx) {
                if taken {
                    pending.remove(input);
                }
                pending.add(input, dx)?;
            }
        }
        for (i, terms) in terms {
            match &node.inputs[i] {
                Some(input) if input.node.step.is_some() => {
                    pending.add(input, sum_all(&[terms])?.swap_remove(0))?;
                }
                Some(leaf) => {
                    let at_once = terms.at_once();
                    let elsewhere =
                        |(_, other): &(u64, Terms)| other.tensor.device() != terms.tensor.device();
                    if unsummed.first().is_some_and(elsewhere) {
                        grads.add_sums(&mut unsummed)?;
                    }
                    unsummed.push((leaf.node.id, terms));
                    if unsummed.len() >= at_once {
                        grads.add_sums(&mut unsummed)?;
                    }
                }
                None => {}
            }
        }
        let Some(early) = &mut early else { continue };
        for leaf in node.inputs.iter().flatten().filter(|input| input.node.step.is_none()) {
            let id = leaf.node.id;
            // What is left in terms is summed later, with other leaves.
            if early.use_up(id) && unsummed.iter().all(|(other, _)| *other != id) {
                let summed = grads.0.remove(&id);
                let last = pending.0.remove(&id).and_then(|(_, mut dys)| dys.swap_remove(0));
                match (summed, last) {
                    (Some(a), Some(b)) => (early.ready)(id, run_one(&Binary::Add, &[&a, &b])?)?,
                    (Some(grad), None) | (None, Some(grad)) => (early.ready)(id, grad)?,
                    (None, None) => {}
                }
            }
        }
    }
    grads.add_sums(&mut unsummed)?;
    Ok(grads)
}

/// Nodes whose results have gradients that have not been propagated yet, by id.
#[derive(Default)]
struct Pending(BTreeMap<u64, (Arc<Node>, Vec<Option<Tensor>>)>);

impl Pending {
    fn of(roots: impl IntoIterator<Item = (Tensor, Tensor)>) -> Result<Pending> {
        let mut pending = Pending::default();
        for (root, dy) in roots {
            if let Some(edge) = &root.edge {
                pending.add(edge, dy)?;
            }
        }
        Ok(pending)
    }

    fn get(&self, edge: &Edge) -> Option<&Tensor> {
        self.0.get(&edge.node.id)?.1[edge.output].as_ref()
    }

    fn remove(&mut self, edge: &Edge) {
        if let Some((_, dys)) = self.0.get_mut(&edge.node.id) {
            dys[edge.output] = None;
        }
    }

    fn add(&mut self, edge: &Edge, dy: Tensor) -> Result<()> {
        let results = edge.node.step.as_ref().map_or(1, |step| step.results.len());
        let (_, dys) =
            self.0.entry(edge.node.id).or_insert_with(|| (edge.node.clone(), vec![None; results]));
        let slot = &mut dys[edge.output];
        *slot = Some(match slot.take() {
            Some(earlier) => run_one(&Binary::Add, &[&earlier, &dy])?,
            None => dy,
        });
        Ok(())
    }
}
