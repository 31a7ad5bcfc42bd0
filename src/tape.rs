//! Reverse-mode automatic differentiation: the whole engine.
//!
//! While a model runs forward, every operator appends a node to the [`Tape`]: its inputs, its outputs, and a closure, the
//! backward half, which stands directly under the forward half and owns what that saved. `backward` walks the nodes from
//! the last to the first. A closure receives the gradient of the loss with respect to its output and gives those with
//! respect to its inputs to a [`Sink`]:
//!
//! ```text
//! forward    y = f(x)
//! backward   dx = (∂f/∂x)ᵀ dy          (d‥ stands for ∂loss/∂‥ everywhere in this crate)
//! ```
//!
//! If a value is used more than once, the gradients of all uses add up in the sink; those of several tapes do if each
//! begins with the sums of the one before ([`Tape::onto`]). Three rules keep the engine small:
//!
//! * `backward` takes the tape by value and each closure is called once and consumed, so saved activations are freed as
//!   the walk passes;
//! * a [`Var`] without an id needs no gradient, and an operator whose inputs all lack one records nothing;
//! * [`Tape::inference`] gives no ids at all, so training, prefill and decode run the same model code.

use crate::device::Device;
use crate::dtype::{DType, Float};
use crate::gpu::Grid;
use crate::launch::{In, Out, int};
use crate::tensor::Tensor;
use anyhow::{Context, Result, bail, ensure};
use std::collections::HashMap;

/// Names a value on a tape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Id(usize);

/// A tensor that may be tracked by a tape.
#[derive(Clone, Debug)]
pub struct Var {
    value: Tensor,
    id: Option<Id>,
}

impl Var {
    /// A value that needs no gradient.
    pub fn constant(value: Tensor) -> Var {
        Var { value, id: None }
    }

    pub fn value(&self) -> &Tensor {
        &self.value
    }

    pub fn shape(&self) -> &[usize] {
        self.value.shape()
    }

    pub fn needs_gradient(&self) -> bool {
        self.id.is_some()
    }
}

/// Where a backward half puts the gradients of its inputs.
pub struct Sink<'a> {
    inputs: &'a [Option<Id>],
    gradients: &'a mut Vec<Option<Tensor>>,
    rounding: Option<DType>,
}

impl Sink<'_> {
    /// Whether the gradient of input `i` is wanted.
    pub fn needs(&self, i: usize) -> bool {
        self.inputs[i].is_some()
    }

    /// Adds a gradient of input `i`; it is dropped if nobody wants it. Error: it does not fit the sum so far.
    pub fn add(&mut self, i: usize, gradient: Tensor) -> Result<()> {
        match self.inputs[i] {
            Some(id) => add(self.gradients, id, rounded(self.rounding, gradient)?),
            None => Ok(()),
        }
    }

    /// Takes the sum so far of input `i`'s gradients, for an operator that adds to it in place: what it then
    /// [`add`](Sink::add)s is the whole sum.
    pub fn take(&mut self, i: usize) -> Option<Tensor> {
        self.gradients.get_mut(self.inputs[i]?.0)?.take()
    }
}

type Backward = Box<dyn FnOnce(Vec<Option<Tensor>>, &mut Sink) -> Result<()> + Send>;

struct Node {
    inputs: Vec<Option<Id>>,
    outputs: Vec<Id>,
    backward: Backward,
}

struct Leaf {
    id: Id,
    shape: Vec<usize>,
}

/// The list of what was computed, in order.
pub struct Tape {
    recording: bool,
    nodes: Vec<Node>,
    leaves: HashMap<String, Leaf>,
    values: usize,
    traced: Option<Vec<(String, Tensor)>>,
    rounding: Option<DType>,
    /// What gradients of leaves are added to.
    sums: Gradients,
}

impl Default for Tape {
    fn default() -> Self {
        Tape::new()
    }
}

impl Tape {
    /// A tape for training.
    pub fn new() -> Tape {
        Tape::onto(Gradients::default())
    }

    /// A tape whose gradients are added to `sums`, which its `backward` gives back: for a batch in several parts.
    pub fn onto(sums: Gradients) -> Tape {
        Tape { recording: true, nodes: vec![], leaves: HashMap::new(), values: 0, traced: None, rounding: None, sums }
    }

    /// A tape that records nothing.
    pub fn inference() -> Tape {
        Tape { recording: false, ..Tape::new() }
    }

    /// A tape that rounds each operator's outputs and gradients to `dtype` and back: what a plain version in that dtype makes
    /// of a function, on the CPU, as a measure of the errors that are allowed.
    pub fn rounding(dtype: DType) -> Tape {
        Tape { rounding: Some(dtype), ..Tape::new() }
    }

    /// A value whose gradient is wanted, under the name that [`Gradients`] has it by.
    ///
    /// The same name again gives the same leaf, so both uses of a tied weight add into one gradient.
    pub fn leaf(&mut self, name: &str, value: &Tensor) -> Var {
        if !self.recording {
            return Var::constant(value.clone());
        }
        if let Some(leaf) = self.leaves.get(name) {
            assert_eq!(leaf.shape, value.shape(), "two leaves are named {name}");
            return Var { value: value.clone(), id: Some(leaf.id) };
        }
        let id = self.new_id();
        self.leaves.insert(name.to_string(), Leaf { id, shape: value.shape().to_vec() });
        Var { value: value.clone(), id: Some(id) }
    }

    /// The names of all leaves so far, sorted.
    pub fn leaf_names(&self) -> Vec<String> {
        let mut names: Vec<String> = self.leaves.keys().cloned().collect();
        names.sort();
        names
    }

    /// Keeps what [`trace`](Tape::trace) is given from now on.
    pub fn keep_trace(&mut self) {
        self.traced = Some(vec![]);
    }

    /// Shows a value to whoever looks inside the model (`handgrad trace`); free unless someone does.
    pub fn trace(&mut self, name: impl FnOnce() -> String, x: &Var) {
        if let Some(traced) = &mut self.traced {
            traced.push((name(), x.value.clone()));
        }
    }

    /// What was traced, in order.
    pub fn take_trace(&mut self) -> Vec<(String, Tensor)> {
        self.traced.take().unwrap_or_default()
    }

    /// Wraps an operator's output. `backward` is kept if some input needs a gradient; it is called, once, if the loss
    /// depends on the output, with the gradient of the output.
    pub fn record(
        &mut self,
        inputs: &[&Var],
        output: Tensor,
        backward: impl FnOnce(Tensor, &mut Sink) -> Result<()> + Send + 'static,
    ) -> Var {
        let backward = move |d_outputs: Vec<Option<Tensor>>, sink: &mut Sink| {
            let d_output = d_outputs.into_iter().next().flatten();
            backward(d_output.context("backward: a node without a gradient")?, sink)
        };
        let mut outputs = self.record_many(inputs, vec![output], backward);
        outputs.pop().expect("one output in, one out")
    }

    /// [`record`](Tape::record) for an operator with several outputs: the gradient of one that nothing used is `None`.
    pub fn record_many(
        &mut self,
        inputs: &[&Var],
        outputs: Vec<Tensor>,
        backward: impl FnOnce(Vec<Option<Tensor>>, &mut Sink) -> Result<()> + Send + 'static,
    ) -> Vec<Var> {
        let round = |y: Tensor| rounded(self.rounding, y.clone()).unwrap_or(y);
        let outputs: Vec<Tensor> = outputs.into_iter().map(round).collect();
        if !inputs.iter().any(|x| x.needs_gradient()) {
            return outputs.into_iter().map(Var::constant).collect();
        }
        let ids: Vec<Id> = outputs.iter().map(|_| self.new_id()).collect();
        let inputs = inputs.iter().map(|x| x.id).collect();
        self.nodes.push(Node { inputs, outputs: ids.clone(), backward: Box::new(backward) });
        outputs.into_iter().zip(ids).map(|(value, id)| Var { value, id: Some(id) }).collect()
    }

    /// Gradients of a scalar loss with respect to every leaf. Errors: a loss of more than one element, or of another tape;
    /// whatever an operator returns.
    ///
    /// The loss's own gradient, 1, lies on the CPU on every device: an operator on losses can read it without waiting.
    pub fn backward(self, loss: &Var) -> Result<Gradients> {
        ensure!(loss.value.len() == 1, "backward: found a loss of shape {:?}, expected one element", loss.shape());
        let one = Tensor::full(loss.shape(), 1.0, loss.value.dtype());
        self.backward_from(&[(loss, one)])
    }

    /// Gradients of Σᵢ ⟨cotangentᵢ, outputᵢ⟩ with respect to every leaf.
    pub fn backward_from(mut self, seeds: &[(&Var, Tensor)]) -> Result<Gradients> {
        let mut gradients: Vec<Option<Tensor>> = vec![None; self.values];
        for (name, leaf) in &self.leaves {
            gradients[leaf.id.0] = self.sums.remove(name);
        }
        for (output, cotangent) in seeds {
            let Some(id) = output.id else { bail!("backward: the output depends on no leaf of this tape") };
            ensure!(
                cotangent.shape() == output.shape(),
                "backward: found a cotangent {cotangent:?}, expected {output:?}"
            );
            add(&mut gradients, id, cotangent.clone())?;
        }
        while let Some(node) = self.nodes.pop() {
            let d_outputs: Vec<Option<Tensor>> = node.outputs.iter().map(|id| gradients[id.0].take()).collect();
            if d_outputs.iter().all(Option::is_none) {
                continue; // the loss does not depend on this node
            }
            let mut sink = Sink { inputs: &node.inputs, gradients: &mut gradients, rounding: self.rounding };
            (node.backward)(d_outputs, &mut sink)?;
        }
        let Gradients { mut by_name } = self.sums; // of leaves that this tape does not have
        for (name, leaf) in self.leaves {
            if let Some(gradient) = gradients[leaf.id.0].take() {
                assert_eq!(gradient.shape(), leaf.shape, "gradient of {name}");
                by_name.insert(name, gradient);
            }
        }
        Ok(Gradients { by_name })
    }

    fn new_id(&mut self) -> Id {
        self.values += 1;
        Id(self.values - 1)
    }
}

/// A float rounded to another dtype and back, if a tape rounds.
fn rounded(rounding: Option<DType>, x: Tensor) -> Result<Tensor> {
    match rounding {
        Some(dtype) => x.to_dtype(dtype)?.to_dtype(x.dtype()),
        None => Ok(x),
    }
}

fn add(gradients: &mut [Option<Tensor>], id: Id, gradient: Tensor) -> Result<()> {
    let slot = gradients.get_mut(id.0).context("backward: a value belongs to another tape")?;
    match slot {
        Some(sum) => accumulate(sum, &gradient)?,
        None => *slot = Some(gradient),
    }
    Ok(())
}

/// `sum += x`, in place when nothing else shares the sum. Errors: shape, dtype or device differ; no memory for a copy.
pub fn accumulate(sum: &mut Tensor, x: &Tensor) -> Result<()> {
    let same = sum.shape() == x.shape() && sum.dtype() == x.dtype() && sum.device() == x.device();
    ensure!(same, "accumulate: found {x:?} on {}, expected {sum:?} on {}", x.device(), sum.device());
    match (sum.device(), sum.dtype()) {
        (Device::Gpu(gpu), dtype) => {
            sum.make_unique()?;
            let grid = Grid::elementwise(sum.len(), dtype.size());
            gpu.launch("add_forward", &grid, &[In(sum), In(x), Out(sum), int(sum.len())])?;
        }
        (Device::Cpu, DType::F32) => add_into::<f32>(sum.as_mut_slice()?, x.as_slice()?),
        (Device::Cpu, DType::F64) => add_into::<f64>(sum.as_mut_slice()?, x.as_slice()?),
        (Device::Cpu, dtype) => bail!("accumulate: found dtype {dtype}, expected f32 or f64 on the cpu"),
    }
    Ok(())
}

fn add_into<F: Float>(sum: &mut [F], x: &[F]) {
    for (s, &x) in sum.iter_mut().zip(x) {
        *s += x;
    }
}

/// What `backward` found, by the leaf's name: the one place between backward and optimizer.
#[derive(Default)]
pub struct Gradients {
    by_name: HashMap<String, Tensor>,
}

impl Gradients {
    /// The gradient of a leaf; `None` if the loss does not depend on it.
    pub fn get(&self, name: &str) -> Option<&Tensor> {
        self.by_name.get(name)
    }

    pub fn get_mut(&mut self, name: &str) -> Option<&mut Tensor> {
        self.by_name.get_mut(name)
    }

    /// Takes the gradient of a leaf out.
    pub fn remove(&mut self, name: &str) -> Option<Tensor> {
        self.by_name.remove(name)
    }
}
