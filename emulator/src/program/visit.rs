//! The registers that an instruction reads and writes, for liveness, allocation and the check of uninitialised values.

use super::{Access, Address, BarrierKind, Class, Instruction, Op, Visit};

impl Address {
    pub fn visit(&mut self, visit: Visit) {
        visit(Access::Read, if self.wide { Class::R64 } else { Class::R32 }, &mut self.base);
    }
}

impl Instruction {
    /// Every register the instruction reads, then every one it writes.
    pub fn visit(&mut self, visit: Visit) {
        use Access::{Read, Write};
        if let Some(guard) = &mut self.guard {
            visit(Read, Class::Pred, &mut guard.pred);
        }
        let width = |wide: bool| if wide { Class::R64 } else { Class::R32 };
        match &mut self.op {
            Op::Alu(alu) => alu.visit(visit),
            Op::Warp(op) => op.visit(visit),
            Op::Load { value, address, to, .. } => {
                address.visit(visit);
                to.iter_mut().for_each(|r| visit(Write, width(value.wide), r));
            }
            Op::Store { value, address, from, .. } => {
                address.visit(visit);
                from.iter_mut().for_each(|r| visit(Read, width(value.wide), r));
            }
            Op::Atomic { function, address, to, b, c, .. } => {
                let class = width(function.ty.bytes() == 8);
                address.visit(visit);
                visit(Read, class, b);
                c.iter_mut().for_each(|r| visit(Read, class, r));
                to.iter_mut().for_each(|r| visit(Write, class, r));
            }
            Op::CopyAsync { shared, global, source_bytes, .. } => {
                shared.visit(visit);
                global.visit(visit);
                source_bytes.iter_mut().for_each(|r| visit(Read, Class::R32, r));
            }
            Op::LoadMatrix { address, to, .. } => {
                address.visit(visit);
                to.iter_mut().for_each(|r| visit(Write, Class::R32, r));
            }
            Op::StoreMatrix { address, from, .. } => {
                address.visit(visit);
                from.iter_mut().for_each(|r| visit(Read, Class::R32, r));
            }
            Op::Barrier(barrier) => {
                visit(Read, Class::R32, &mut barrier.id);
                barrier.threads.iter_mut().for_each(|r| visit(Read, Class::R32, r));
                match &mut barrier.kind {
                    BarrierKind::Sync | BarrierKind::Arrive => {}
                    BarrierKind::Count { to, pred, .. } => {
                        visit(Read, Class::Pred, pred);
                        visit(Write, Class::R32, to);
                    }
                    BarrierKind::All { to, pred, .. } | BarrierKind::Any { to, pred, .. } => {
                        visit(Read, Class::Pred, pred);
                        visit(Write, Class::Pred, to);
                    }
                }
            }
            Op::WarpBarrier { members } => visit(Read, Class::R32, members),
            Op::BranchIndexed { index, .. } => visit(Read, Class::R32, index),
            Op::Printf { format, arguments, to } => {
                visit(Read, Class::R64, format);
                visit(Read, Class::R64, arguments);
                visit(Write, Class::R32, to);
            }
            Op::AssertFail { message, file, line, function } => {
                visit(Read, Class::R64, message);
                visit(Read, Class::R64, file);
                visit(Read, Class::R32, line);
                visit(Read, Class::R64, function);
            }
            Op::ReadClock { to, wide } => visit(Write, width(*wide), to),
            Op::IsSpace { to, from, .. } => {
                visit(Read, Class::R64, from);
                visit(Write, Class::Pred, to);
            }
            Op::CopyAsyncCommit
            | Op::CopyAsyncWait { .. }
            | Op::Fence
            | Op::Branch { .. }
            | Op::Exit
            | Op::Trap
            | Op::Nop => {}
        }
    }
}
