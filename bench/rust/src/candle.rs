//! candle: the linear layer and the scan, by its ops and its autograd on the CPU.

use candle_core::{DType, Device, Tensor, Var};

use crate::case::Case;
use crate::clock::Clock;
use crate::{Contestant, Output, Result, unsupported};

pub fn prepare(case: &Case) -> Result<Box<dyn Contestant>> {
    let dtype = match case.dtype.as_str() {
        "f32" => DType::F32,
        "bf16" => DType::BF16,
        other => return unsupported(other),
    };
    if case.task == "linear" {
        return Ok(Box::new(Linear::new(case, dtype)?));
    }
    match dtype {
        DType::F32 => Ok(Box::new(Scan::new(case)?)),
        _ => unsupported(&case.dtype),
    }
}

fn tensor(case: &Case, name: &str, shape: &[usize]) -> Result<Tensor> {
    Ok(Tensor::from_vec(case.input(name)?, shape, &Device::Cpu)?)
}

fn values(tensor: &Tensor) -> Result<Vec<f32>> {
    Ok(tensor.to_dtype(DType::F32)?.flatten_all()?.to_vec1()?)
}

/// The gradients of `variables`, given `dy`: its backward pass starts from a number.
fn gradients(y: &Tensor, dy: &Tensor, variables: &[Var]) -> Result<Vec<Tensor>> {
    let grads = y.mul(dy)?.sum_all()?.backward()?;
    let of = |variable: &Var| grads.get(variable).cloned().ok_or_else(|| "no gradient".into());
    variables.iter().map(of).collect()
}

/// Whether a forward pass is remembered for the backward one.
#[derive(Clone, Copy)]
enum Graph {
    Kept,
    None,
}

impl Graph {
    fn leaves(self, variables: &[Var]) -> Vec<Tensor> {
        let leaf = |variable: &Var| match self {
            Graph::Kept => variable.as_tensor().clone(),
            Graph::None => variable.as_tensor().detach(),
        };
        variables.iter().map(leaf).collect()
    }
}

struct Linear {
    /// `x`, `w`, `bias`
    inputs: Vec<Var>,
    dy: Tensor,
    /// With its graph, for the backward pass.
    y: Option<Tensor>,
}

impl Linear {
    fn new(case: &Case, dtype: DType) -> Result<Linear> {
        let [m, k, n] = case.product()?;
        let input = |name, shape: &[usize]| -> Result<Tensor> {
            Ok(tensor(case, name, shape)?.to_dtype(dtype)?)
        };
        let shapes = [("x", vec![m, k]), ("w", vec![k, n]), ("bias", vec![n])];
        let inputs = shapes.iter().map(|(name, shape)| Ok(Var::from_tensor(&input(name, shape)?)?));
        let inputs: Vec<Var> = inputs.collect::<Result<_>>()?;
        let y = case.is_backward().then(|| Linear::forward(&inputs, Graph::Kept)).transpose()?;
        Ok(Linear { inputs, dy: input("dy", &[m, n])?, y })
    }

    fn forward(inputs: &[Var], graph: Graph) -> Result<Tensor> {
        let inputs = graph.leaves(inputs);
        let [x, w, bias] = inputs.as_slice() else {
            return Err("a layer has three inputs".into());
        };
        Ok(x.matmul(w)?.broadcast_add(bias)?.gelu()?)
    }

    fn once(&self) -> Result<Vec<Tensor>> {
        match &self.y {
            Some(y) => gradients(y, &self.dy, &self.inputs),
            None => Ok(vec![Linear::forward(&self.inputs, Graph::None)?]),
        }
    }
}

impl Contestant for Linear {
    fn outputs(&mut self) -> Result<Vec<Output>> {
        let names: &[&'static str] = if self.y.is_some() { &["dx", "dw", "dbias"] } else { &["y"] };
        let found = self.once()?;
        names.iter().zip(&found).map(|(name, tensor)| Ok((*name, values(tensor)?))).collect()
    }

    fn run(&mut self, times: usize, clock: &mut Clock) -> Result<()> {
        clock.time(|| (0..times).try_for_each(|_| self.once().map(drop)))
    }
}

/// The recurrence step by step.
struct Scan {
    /// In the order of the results' names.
    inputs: Vec<Var>,
    dy: Tensor,
    backward: bool,
}

impl Scan {
    fn new(case: &Case) -> Result<Scan> {
        let [b, l, d, n] = case.scan()?;
        let shapes = [
            ("u", vec![b, l, d]),
            ("delta", vec![b, l, d]),
            ("a_log", vec![d, n]),
            ("b", vec![b, l, n]),
            ("c", vec![b, l, n]),
            ("d", vec![d]),
            ("delta_bias", vec![d]),
            ("z", vec![b, l, d]),
        ];
        let input = |name: &str, shape: &[usize]| tensor(case, name, shape);
        let inputs = shapes.iter().map(|(name, shape)| Ok(Var::from_tensor(&input(name, shape)?)?));
        Ok(Scan {
            inputs: inputs.collect::<Result<_>>()?,
            dy: input("dy", &[b, l, d])?,
            backward: case.is_backward(),
        })
    }

    fn forward(&self, graph: Graph) -> Result<Tensor> {
        let inputs = graph.leaves(&self.inputs);
        let [u, delta, a_log, b, c, d, delta_bias, z] = inputs.as_slice() else {
            return Err("a scan has eight inputs".into());
        };
        // softplus
        let delta = (delta.broadcast_add(delta_bias)?.exp()? + 1.0)?.log()?;
        let a = a_log.exp()?.neg()?;
        let mut h = u.zeros_like()?.narrow(1, 0, 1)?.squeeze(1)?.unsqueeze(2)?;
        let mut ys = Vec::new();
        for t in 0..u.dim(1)? {
            let at = |tensor: &Tensor| tensor.narrow(1, t, 1)?.squeeze(1);
            let (u, delta, b, c) = (at(u)?, at(&delta)?, at(b)?, at(c)?);
            let a_bar = delta.unsqueeze(2)?.broadcast_mul(&a)?.exp()?;
            let inflow = delta.mul(&u)?.unsqueeze(2)?.broadcast_mul(&b.unsqueeze(1)?)?;
            h = a_bar.broadcast_mul(&h)?.add(&inflow)?;
            ys.push(h.matmul(&c.unsqueeze(2)?)?.squeeze(2)?);
        }
        let y = Tensor::stack(&ys, 1)?.add(&u.broadcast_mul(d)?)?;
        Ok(y.mul(&z.silu()?)?)
    }

    fn once(&self) -> Result<Vec<Tensor>> {
        if !self.backward {
            return Ok(vec![self.forward(Graph::None)?]);
        }
        let y = self.forward(Graph::Kept)?;
        let mut found = vec![y.detach()];
        found.extend(gradients(&y, &self.dy, &self.inputs)?);
        Ok(found)
    }
}

const RESULTS: [&str; 9] = ["y", "du", "ddelta", "da_log", "db", "dc", "dd", "ddelta_bias", "dz"];

impl Contestant for Scan {
    fn outputs(&mut self) -> Result<Vec<Output>> {
        let found = self.once()?;
        RESULTS.iter().zip(&found).map(|(name, tensor)| Ok((*name, values(tensor)?))).collect()
    }

    fn run(&mut self, times: usize, clock: &mut Clock) -> Result<()> {
        clock.time(|| (0..times).try_for_each(|_| self.once().map(drop)))
    }
}
