//! Branches, barriers, fences, clocks and what has no effect on values. (PTX ISA, "Control Flow Instructions",
//! "Parallel Synchronization and Communication Instructions", "Miscellaneous Instructions".)

use crate::lower::kernel::{Lowering, Part};
use crate::lower::problem::{Outcome, invalid, unsupported};
use crate::program::{Barrier, BarrierKind, Class, Op, Reg};
use crate::ptx::ast::{Instruction, Operand, Space, Type};

fn words(instruction: &Instruction) -> Vec<&str> {
    instruction.modifiers.iter().map(String::as_str).collect()
}

fn operand_count<T>(instruction: &Instruction, expected: &str) -> Outcome<T> {
    invalid(format!("found {} operands, expected {expected}", instruction.operands.len()))
}

impl Lowering<'_> {
    /// `exit`, `ret`, `trap`, `brkpt`.
    pub fn leave(&mut self, instruction: &Instruction) -> Outcome<()> {
        let uniform = instruction.opcode == "ret" && instruction.modifiers == ["uni"];
        if !instruction.operands.is_empty() || !instruction.modifiers.is_empty() && !uniform {
            return invalid("expected no operands and no modifiers");
        }
        match (instruction.opcode.as_str(), self.calls.last()) {
            ("exit", _) | ("ret", None) => self.emit(Op::Exit),
            ("ret", Some(call)) => {
                let target = call.end;
                self.emit(Op::Branch { target });
            }
            _ => self.emit(Op::Trap),
        }
        Ok(())
    }

    pub fn branch(&mut self, instruction: &Instruction) -> Outcome<()> {
        match (instruction.opcode.as_str(), &words(instruction)[..], &instruction.operands[..]) {
            ("bra", [] | ["uni"], [Operand::Name(label)]) => {
                let target = self.labels.find(label)?;
                self.emit(Op::Branch { target });
            }
            ("brx", ["idx"] | ["idx", "uni"], [index, Operand::Name(table)]) => {
                let index = self.operands.read(index, Type::U32)?;
                let targets = self.labels.table(table)?;
                self.emit(Op::BranchIndexed { index, targets });
            }
            _ => return invalid("expected bra LABEL or brx.idx INDEX, TABLE"),
        }
        Ok(())
    }

    pub fn fence(&mut self, instruction: &Instruction) -> Outcome<()> {
        if !instruction.operands.is_empty() {
            return unsupported("fences with operands are not supported");
        }
        let scope = |word: &str| matches!(word, "cta" | "cluster" | "gpu" | "sys");
        let known = match (instruction.opcode.as_str(), &words(instruction)[..]) {
            ("membar", ["cta" | "gl" | "sys"]) => true,
            ("fence", ["sc" | "acq_rel" | "acquire" | "release", word]) | ("fence", [word]) => scope(word),
            ("fence", ["mbarrier_init", "release", "cluster"]) => true,
            ("fence" | "membar", ["proxy", "alias" | "async" | "async::generic"]) => true,
            ("fence" | "membar", ["proxy", "async", "global" | "shared" | "shared::cta" | "shared::cluster"]) => true,
            ("fence" | "membar", ["proxy", kind]) => kind.starts_with("async."),
            _ => false,
        };
        match known {
            true => self.emit(Op::Fence),
            false => return unsupported("this form of fence is not known"),
        }
        Ok(())
    }

    /// `bar`, `barrier`, and `bar.warp.sync`.
    pub fn barrier(&mut self, instruction: &Instruction) -> Outcome<()> {
        let mut form = words(instruction);
        let short = instruction.opcode == "bar";
        if short && form == ["warp", "sync"] {
            let [members] = &instruction.operands[..] else { return operand_count(instruction, "one, the membermask") };
            let members = self.operands.read(members, Type::B32)?;
            self.emit(Op::WarpBarrier { members });
            return Ok(());
        }
        if form.first() == Some(&"cluster") {
            return unsupported("clusters are not supported");
        }
        if form.first() == Some(&"cta") {
            form.remove(0);
        }
        let aligned = form.iter().position(|word| *word == "aligned").filter(|_| !short);
        if let Some(at) = aligned {
            form.remove(at);
        }
        let aligned = short || aligned.is_some();
        match (&form[..], &instruction.operands[..]) {
            (["sync"], [id]) => self.plain_barrier(id, None, BarrierKind::Sync, aligned),
            (["sync"], [id, threads]) => self.plain_barrier(id, Some(threads), BarrierKind::Sync, aligned),
            (["arrive"], [id, threads]) => self.plain_barrier(id, Some(threads), BarrierKind::Arrive, aligned),
            (["red", "popc", "u32"], [to, id, rest @ .., pred]) if rest.len() < 2 => {
                let (pred, negated) = self.operands.read_pred(pred)?;
                let to = self.operands.write(to, Type::U32)?;
                self.plain_barrier(id, rest.first(), BarrierKind::Count { to, pred, negated }, aligned)
            }
            (["red", function @ ("and" | "or"), "pred"], [to, id, rest @ .., pred]) if rest.len() < 2 => {
                let (pred, negated) = self.operands.read_pred(pred)?;
                let to = self.operands.write(to, Type::Pred)?;
                let kind = match *function {
                    "and" => BarrierKind::All { to, pred, negated },
                    _ => BarrierKind::Any { to, pred, negated },
                };
                self.plain_barrier(id, rest.first(), kind, aligned)
            }
            (["sync"] | ["arrive"] | ["red", ..], operands) => {
                invalid(format!("{} operands do not fit this form of barrier", operands.len()))
            }
            _ => unsupported("this form of barrier is not known"),
        }
    }

    fn plain_barrier(
        &mut self,
        id: &Operand,
        threads: Option<&Operand>,
        kind: BarrierKind,
        aligned: bool,
    ) -> Outcome<()> {
        if let Operand::Int(id) = id
            && !(0..16).contains(id)
        {
            return invalid(format!("barrier {id}, expected 0 to 15"));
        }
        let id = self.operands.read(id, Type::U32)?;
        let threads = threads.map(|threads| self.operands.read(threads, Type::U32)).transpose()?;
        self.emit(Op::Barrier(Barrier { id, threads, kind, aligned }));
        Ok(())
    }

    /// What has no effect on values. Operands must still exist.
    pub fn hint(&mut self, instruction: &Instruction) -> Outcome<()> {
        let form = words(instruction);
        let known = matches!(
            (instruction.opcode.as_str(), &form[..]),
            ("prefetch", ["L1" | "L2"] | ["global" | "local", "L1" | "L2"])
                | ("prefetch", ["global", "L2::evict_last" | "L2::evict_normal"])
                | ("prefetchu", ["L1"])
                | ("discard", ["L2"] | ["global", "L2"])
                | ("applypriority", ["L2::evict_normal"] | ["global", "L2::evict_normal"])
                | ("nanosleep", ["u32"])
                | ("griddepcontrol", ["launch_dependents" | "wait"])
                | ("pragma", _)
        );
        if !known {
            return unsupported("this form is not known");
        }
        for operand in &instruction.operands {
            match (operand, instruction.opcode.as_str()) {
                (Operand::Address { .. }, _) => {
                    let space = match form.first().copied().unwrap_or_default() {
                        "global" => Space::Global,
                        "local" => Space::Local,
                        _ => Space::Generic,
                    };
                    self.address(operand, space, 0)?;
                }
                (_, "nanosleep") => {
                    self.operands.read(operand, Type::U32)?;
                }
                _ => {}
            }
        }
        self.emit(Op::Nop);
        Ok(())
    }

    /// `mov` from a clock; false if it is another `mov`.
    pub fn clock(&mut self, instruction: &Instruction) -> Outcome<bool> {
        let [to, Operand::Name(clock)] = &instruction.operands[..] else { return Ok(false) };
        let (wide, upper) = match clock.as_str() {
            "%clock" | "%globaltimer_lo" => (false, false),
            "%clock_hi" | "%globaltimer_hi" => (true, true),
            "%clock64" | "%globaltimer" => (true, false),
            _ => return Ok(false),
        };
        let ty = if wide && !upper { Type::U64 } else { Type::U32 };
        let fits = |word: &str| Type::parse(word).is_some_and(|found| found.bytes() == ty.bytes() && !float(found));
        let [word] = &words(instruction)[..] else { return invalid("expected mov.TYPE") };
        if !fits(word) {
            return invalid(format!("{clock} has {} bits", 8 * ty.bytes()));
        }
        let to = self.operands.write(to, ty)?;
        match upper {
            false => self.emit(Op::ReadClock { to, wide }),
            true => self.upper_clock(to)?,
        }
        Ok(true)
    }

    fn upper_clock(&mut self, to: Reg) -> Outcome<()> {
        let whole = self.operands.scratch(Class::R64);
        let guard = self.guard.take();
        self.emit(Op::ReadClock { to: whole, wide: true });
        self.guard = guard;
        let whole = Part::Register(Type::U64, whole);
        self.unguarded("shr.u64", &[whole, whole, Part::Number(32)])?;
        self.arithmetic("cvt.u32.u64", &[Part::Register(Type::U32, to), whole])
    }
}

fn float(ty: Type) -> bool {
    matches!(ty, Type::F32 | Type::F64 | Type::F16x2 | Type::Bf16x2)
}
