//! Counts added up over a program, and what they say.

use std::collections::HashMap;

use super::{Counters, InstructionClass, TensorRate, Traffic, classify, tensor_work};
use crate::program::{Op, Program};

/// What the report needs to know of a program, so that it need not keep it.
#[derive(Debug, Clone, Default)]
pub struct Listing {
    rows: Vec<Row>,
    /// Source lines, each once.
    lines: Vec<String>,
}

#[derive(Debug, Clone)]
struct Row {
    class: InstructionClass,
    flops: u32,
    tensor: Option<(TensorRate, u64)>,
    branch: bool,
    /// Index into `Listing::lines`.
    line: usize,
}

/// Totals of a program.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Derived {
    /// Warp instructions, and the lanes that took part in them.
    pub instructions: u64,
    pub lanes: u64,
    /// Warp instructions of each class that occurs, in the order of `InstructionClass`.
    pub classes: Vec<(InstructionClass, u64)>,
    /// Operations of tensor cores by rate, in the order f32, f16 accumulators, tf32, int8, f64.
    pub tensor_flops: [u64; 5],
    /// Operations of CUDA cores.
    pub float32_flops: u64,
    pub float64_flops: u64,
    pub half_flops: u64,
    /// Lanes of special functions.
    pub special_functions: u64,
    pub traffic: Traffic,
    pub branches: u64,
    pub diverged_branches: u64,
    pub barriers: u64,
}

/// What one source line did.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Share {
    pub line: String,
    pub instructions: u64,
    pub lanes: u64,
    pub diverged_branches: u64,
    pub traffic: Traffic,
}

impl Listing {
    pub fn of(program: &Program) -> Listing {
        let mut listing = Listing::default();
        let mut numbers = HashMap::new();
        for instruction in &program.code {
            let text = program.lines.get(instruction.line as usize).map(|line| line.to_string()).unwrap_or_default();
            let line = *numbers.entry(text).or_insert_with_key(|text| {
                listing.lines.push(text.clone());
                listing.lines.len() - 1
            });
            let (class, flops) = classify(&instruction.op);
            let branch = matches!(instruction.op, Op::Branch { .. } | Op::BranchIndexed { .. });
            listing.rows.push(Row { class, flops, tensor: tensor_work(&instruction.op), branch, line });
        }
        listing
    }

    pub fn derive(&self, counters: &Counters) -> Derived {
        let mut derived = Derived { barriers: counters.barriers, ..Derived::default() };
        let mut classes = std::collections::BTreeMap::new();
        for (pc, row) in self.rows.iter().enumerate() {
            let (executed, lanes) = (at(&counters.executed, pc), at(&counters.lanes, pc));
            derived.instructions += executed;
            derived.lanes += lanes;
            if executed > 0 {
                *classes.entry(row.class).or_insert(0) += executed;
            }
            if let Some((rate, flops)) = row.tensor {
                derived.tensor_flops[rate as usize] += flops * lanes / 32;
            }
            match row.class {
                InstructionClass::Float32 => derived.float32_flops += row.flops as u64 * lanes,
                InstructionClass::Float64 => derived.float64_flops += row.flops as u64 * lanes,
                InstructionClass::Half => derived.half_flops += row.flops as u64 * lanes,
                InstructionClass::SpecialFunction => derived.special_functions += lanes,
                _ => {}
            }
            derived.traffic.add(&counters.traffic.get(pc).copied().unwrap_or_default());
            derived.branches += if row.branch { executed } else { 0 };
            derived.diverged_branches += at(&counters.diverged, pc);
        }
        derived.classes = classes.into_iter().collect();
        derived
    }

    /// The counts by source line, most instructions first.
    pub fn by_line(&self, counters: &Counters) -> Vec<Share> {
        let mut shares: Vec<Share> =
            self.lines.iter().map(|line| Share { line: line.clone(), ..Share::default() }).collect();
        for (pc, row) in self.rows.iter().enumerate() {
            let share = &mut shares[row.line];
            share.instructions += at(&counters.executed, pc);
            share.lanes += at(&counters.lanes, pc);
            share.diverged_branches += at(&counters.diverged, pc);
            share.traffic.add(&counters.traffic.get(pc).copied().unwrap_or_default());
        }
        shares.retain(|share| share.instructions > 0);
        shares.sort_by(|a, b| b.instructions.cmp(&a.instructions).then_with(|| a.line.cmp(&b.line)));
        shares
    }
}

fn at(counts: &[u64], pc: usize) -> u64 {
    counts.get(pc).copied().unwrap_or(0)
}

impl Derived {
    /// Lanes an instruction, of 32.
    pub fn lanes_per_instruction(&self) -> f64 {
        ratio(self.lanes, self.instructions)
    }

    pub fn all_tensor_flops(&self) -> u64 {
        self.tensor_flops.iter().sum()
    }

    pub fn cuda_core_flops(&self) -> u64 {
        self.float32_flops + self.float64_flops + self.half_flops
    }

    /// Fewest sectors over those moved, in percent: 100 is as good as can be.
    pub fn sector_efficiency(&self) -> f64 {
        percent(self.traffic.sectors_ideal, self.traffic.sectors)
    }

    pub fn wavefront_efficiency(&self) -> f64 {
        percent(self.traffic.wavefronts_ideal, self.traffic.wavefronts)
    }
}

/// 100 where there is nothing.
fn percent(part: u64, whole: u64) -> f64 {
    if whole == 0 { 100.0 } else { 100.0 * part as f64 / whole as f64 }
}

fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

impl Traffic {
    /// Sectors beyond the ideal. A broadcast of a whole warp can be below it by rounding.
    pub fn excess_sectors(&self) -> u64 {
        self.sectors.saturating_sub(self.sectors_ideal)
    }

    pub fn excess_wavefronts(&self) -> u64 {
        self.wavefronts.saturating_sub(self.wavefronts_ideal)
    }
}
