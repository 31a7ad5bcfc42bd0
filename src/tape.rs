//! Reverse-mode automatic differentiation: the whole engine.
//!
//! While a model runs forward, every operator appends a node to the [`Tape`]. `backward` walks the nodes from the
//! last to the first. A node receives the gradient of the loss with respect to its outputs and returns the gradients with respect to its inputs:
//!
//! ```text
//! forward    y = f(x)
//! backward   dx = (∂f/∂x)ᵀ dy          (d‥ stands for ∂loss/∂‥ everywhere in this crate)
//! ```
//!
//! If a value is used more than once, the gradients of all uses add up. Three rules keep the engine small:
//!
//! * `backward` takes the tape by value and each node consumes itself, so the activations it saved are freed as the walk passes;
//! * a [`Var`] without an id needs no gradient, and an operator whose inputs all lack one records nothing;
//! * [`Tape::inference`] gives no ids at all, so training, prefill and decode run the same model code.

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

/// The backward half of an operator, with what its forward half saved.
pub trait Backward: Send {
    /// Gradients with respect to the inputs, one for each. What is given where `needs` is false is dropped, so only costly ones
    /// need to ask.
    ///
    /// `d_outputs[i]` is the gradient with respect to output `i`, `None` if nothing used that output; at least one is given.
    fn backward(self: Box<Self>, d_outputs: Vec<Option<Tensor>>, needs: &[bool]) -> Result<Vec<Option<Tensor>>>;
}

struct Node {
    inputs: Vec<Option<Id>>,
    outputs: Vec<Id>,
    op: Box<dyn Backward>,
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
}

impl Default for Tape {
    fn default() -> Self {
        Tape::new()
    }
}

impl Tape {
    /// A tape for training.
    pub fn new() -> Tape {
        Tape { recording: true, nodes: vec![], leaves: HashMap::new(), values: 0, traced: None }
    }

    /// A tape that records nothing.
    pub fn inference() -> Tape {
        Tape { recording: false, ..Tape::new() }
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

    /// Wraps an operator's output; `op` is called, and its state saved, only if some input needs a gradient.
    pub fn record(&mut self, inputs: &[&Var], output: Tensor, op: impl FnOnce() -> Box<dyn Backward>) -> Var {
        let mut outputs = self.record_many(inputs, vec![output], op);
        outputs.pop().expect("one output in, one out")
    }

    /// [`record`](Tape::record) for an operator with several outputs.
    pub fn record_many(
        &mut self,
        inputs: &[&Var],
        outputs: Vec<Tensor>,
        op: impl FnOnce() -> Box<dyn Backward>,
    ) -> Vec<Var> {
        if !inputs.iter().any(|x| x.needs_gradient()) {
            return outputs.into_iter().map(Var::constant).collect();
        }
        let ids: Vec<Id> = outputs.iter().map(|_| self.new_id()).collect();
        self.nodes.push(Node { inputs: inputs.iter().map(|x| x.id).collect(), outputs: ids.clone(), op: op() });
        outputs.into_iter().zip(ids).map(|(value, id)| Var { value, id: Some(id) }).collect()
    }

    /// Gradients of a scalar loss with respect to every leaf.
    pub fn backward(self, loss: &Var) -> Result<Gradients> {
        ensure!(loss.value.len() == 1, "backward: found a loss of shape {:?}, expected one element", loss.shape());
        let one = Tensor::full(loss.shape(), 1.0, loss.value.dtype());
        self.backward_from(&[(loss, one)])
    }

    /// Gradients of Σᵢ ⟨cotangentᵢ, outputᵢ⟩ with respect to every leaf.
    pub fn backward_from(mut self, seeds: &[(&Var, Tensor)]) -> Result<Gradients> {
        let mut gradients: Vec<Option<Tensor>> = vec![None; self.values];
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
            let needs: Vec<bool> = node.inputs.iter().map(Option::is_some).collect();
            let d_inputs = node.op.backward(d_outputs, &needs)?;
            for (input, d_input) in node.inputs.iter().zip(d_inputs) {
                if let (Some(id), Some(d_input)) = (input, d_input) {
                    add(&mut gradients, *id, d_input)?;
                }
            }
        }
        let mut by_name = HashMap::new();
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

fn add(gradients: &mut [Option<Tensor>], id: Id, d: Tensor) -> Result<()> {
    let slot = gradients.get_mut(id.0).context("backward: a value belongs to another tape")?;
    match slot {
        Some(sum) => sum.accumulate(&d)?,
        None => *slot = Some(d),
    }
    Ok(())
}

/// What `backward` found, by the leaf's name: the one place between backward and optimizer.
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
}

/// The gradient of a single-output operator.
pub fn only(d_outputs: Vec<Option<Tensor>>) -> Tensor {
    d_outputs.into_iter().next().flatten().expect("a node runs backward only with a gradient")
}
