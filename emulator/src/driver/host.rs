//! Host memory that the device knows: pinned (`cuMemHostAlloc`), registered, managed; and copies still under way.
//!
//! A copy to pinned memory returns before it is done: until the host waits for it, the destination holds 0xFF bytes (a NaN
//! in every float format), so a program that reads too early sees it. A copy from pinned memory may read its source until
//! the host waits: the source's hash is taken at the call and compared at the wait.
//! Mapped and managed memory has the same address on the device; it is copied there before work that may read it and back after.
//! Freed pinned memory is kept for a while, so that nothing else gets its addresses and a later use is recognised.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::collections::{BTreeMap, VecDeque};
use std::hash::{DefaultHasher, Hasher};
use std::sync::Arc;

use super::abi::HostOut;
use super::order::When;
use crate::fault::{Code, Fault, Result};
use crate::memory::room;

/// What an undelivered destination holds.
pub const POISON: u8 = 0xff;
const PAGE: usize = 4096;
/// The most freed memory that is kept: blocks, and their bytes.
const MOST_FREED: usize = 256;
const MOST_FREED_BYTES: u64 = 64 << 20;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HostKind {
    Pinned,
    Registered,
    Managed,
}

impl HostKind {
    pub fn name(self) -> &'static str {
        match self {
            HostKind::Pinned => "pinned host memory",
            HostKind::Registered => "registered host memory",
            HostKind::Managed => "managed memory",
        }
    }
}

/// A block of host memory.
pub struct HostBlock {
    base: *mut u8,
    bytes: usize,
    /// Where the block is ours to free.
    layout: Option<Layout>,
    pub kind: HostKind,
    pub owner: u32,
    pub flags: u32,
    /// Whether device memory at the same address mirrors it.
    pub mapped: bool,
}

// SAFETY: the block is plain memory, its own or lent by the C caller for all threads, and is reached only under the driver's lock.
unsafe impl Send for HostBlock {}

impl HostBlock {
    pub fn allocate(kind: HostKind, owner: u32, bytes: u64, flags: u32) -> Result<HostBlock> {
        let size = usize::try_from(bytes).ok().filter(|&size| size > 0);
        let size = size.ok_or_else(|| Fault::new(Code::InvalidValue, format!("{} of {bytes} bytes", kind.name())))?;
        let none = || Fault::new(Code::OutOfMemory, format!("no room for {bytes} bytes of {}", kind.name()));
        let layout = Layout::from_size_align(size, PAGE).map_err(|_| none())?;
        // SAFETY: the layout's size is not zero.
        let base = unsafe { alloc_zeroed(layout) };
        if base.is_null() {
            return Err(none());
        }
        Ok(HostBlock { base, bytes: size, layout: Some(layout), kind, owner, flags, mapped: false })
    }

    /// Memory of the caller, who promises that it lives until it is unregistered.
    pub fn register(owner: u32, memory: HostOut, bytes: usize, flags: u32) -> Result<HostBlock> {
        if bytes == 0 {
            return Err(Fault::new(Code::InvalidValue, "0 bytes of host memory to register"));
        }
        memory.bytes(bytes, "the memory to register")?;
        Ok(HostBlock {
            base: memory.raw(),
            bytes,
            layout: None,
            kind: HostKind::Registered,
            owner,
            flags,
            mapped: false,
        })
    }

    pub fn start(&self) -> u64 {
        self.base as u64
    }

    pub fn len(&self) -> u64 {
        self.bytes as u64
    }

    pub fn read(&self, offset: u64, bytes: u64) -> Result<Vec<u8>> {
        let mut copy = room::zeroed(bytes.min(self.len().saturating_sub(offset)) as usize)?;
        self.read_into(offset, &mut copy);
        Ok(copy)
    }

    fn read_into(&self, offset: u64, to: &mut [u8]) {
        let offset = (offset as usize).min(self.bytes);
        let bytes = to.len().min(self.bytes - offset);
        // SAFETY: `offset + bytes` is cut to the block, which lives until it leaves the table that holds this.
        unsafe { self.base.add(offset).copy_to_nonoverlapping(to.as_mut_ptr(), bytes) };
    }

    /// A hash of a range, which is cut to the block.
    fn hash(&self, offset: u64, bytes: u64) -> u64 {
        let mut hasher = DefaultHasher::new();
        let end = offset.saturating_add(bytes).min(self.len());
        let mut piece = [0; PAGE];
        for at in (offset..end).step_by(PAGE) {
            let piece = &mut piece[..(end - at).min(PAGE as u64) as usize];
            self.read_into(at, piece);
            hasher.write(piece);
        }
        hasher.finish()
    }

    /// Fills what an undelivered copy will write.
    fn poison(&mut self, offset: u64, bytes: usize) {
        let offset = (offset as usize).min(self.bytes);
        let bytes = bytes.min(self.bytes - offset);
        // SAFETY: `offset + bytes` is cut to the block, which lives until it leaves the table that holds this.
        unsafe { self.base.add(offset).write_bytes(POISON, bytes) };
    }

    pub fn write(&mut self, offset: u64, data: &[u8]) {
        let offset = (offset as usize).min(self.bytes);
        let bytes = data.len().min(self.bytes - offset);
        // SAFETY: `offset + bytes` is cut to the block, which lives until it leaves the table that holds this.
        unsafe { self.base.add(offset).copy_from_nonoverlapping(data.as_ptr(), bytes) };
    }
}

impl Drop for HostBlock {
    fn drop(&mut self) {
        if let Some(layout) = self.layout {
            // SAFETY: allocated with this layout, and freed once: here.
            unsafe { dealloc(self.base, layout) };
        }
    }
}

/// A copy whose data is not delivered yet.
struct Delivery {
    when: When,
    block: u64,
    offset: u64,
    data: Vec<u8>,
    what: Arc<str>,
}

/// A copy that may still read its source.
struct PendingRead {
    when: When,
    block: u64,
    offset: u64,
    bytes: u64,
    hash: u64,
    what: Arc<str>,
}

/// Which copies are delivered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Among {
    All,
    /// To the block that begins there.
    Block(u64),
    /// To memory that kernels may reach.
    Mapped,
}

#[derive(Default)]
pub struct HostMemory {
    blocks: BTreeMap<u64, HostBlock>,
    /// Pinned memory that was freed, the latest last.
    freed: VecDeque<HostBlock>,
    freed_bytes: u64,
    deliveries: Vec<Delivery>,
    sources: Vec<PendingRead>,
}

impl HostMemory {
    pub fn insert(&mut self, block: HostBlock) -> Result<u64> {
        let (start, end) = (block.start(), block.start() + block.len());
        if let Some(other) = self.blocks.range(..end).next_back().map(|entry| entry.1)
            && other.start() + other.len() > start
        {
            return Err(Fault::new(
                Code::HostMemoryAlreadyRegistered,
                format!("{start:#x} and {} bytes overlap {} at {:#x}", block.len(), other.kind.name(), other.start()),
            ));
        }
        self.blocks.insert(start, block);
        Ok(start)
    }

    /// The block that holds an address.
    pub fn holding(&self, address: u64) -> Option<&HostBlock> {
        let block = self.blocks.range(..=address).next_back()?.1;
        (address < block.start() + block.len()).then_some(block)
    }

    pub fn holding_mut(&mut self, address: u64) -> Option<&mut HostBlock> {
        let block = self.blocks.range_mut(..=address).next_back()?.1;
        (address < block.start() + block.len()).then_some(block)
    }

    /// The block that holds a whole range.
    pub fn holding_range(&self, address: u64, bytes: u64) -> Option<&HostBlock> {
        self.holding(address).filter(|block| bytes <= block.len() - (address - block.start()))
    }

    /// An error where a range of host memory overlaps pinned memory that was freed.
    pub fn refuse_freed(&self, address: u64, bytes: u64) -> Result<()> {
        let end = address.saturating_add(bytes);
        let found = self.freed.iter().find(|block| address < block.start() + block.len() && block.start() < end);
        found.map_or(Ok(()), |block| {
            let message = format!(
                "{bytes} bytes at {address:#x} are in the {} bytes of {} at {:#x}, which was freed already",
                block.len(),
                block.kind.name(),
                block.start()
            );
            Err(Fault::new(Code::InvalidValue, message))
        })
    }

    /// Keeps a block that was taken out, where the driver allocated it.
    pub fn keep_freed(&mut self, block: HostBlock) {
        if block.kind != HostKind::Pinned || block.len() > MOST_FREED_BYTES {
            return;
        }
        self.freed_bytes += block.len();
        self.freed.push_back(block);
        while self.freed.len() > MOST_FREED || self.freed_bytes > MOST_FREED_BYTES {
            let Some(oldest) = self.freed.pop_front() else { break };
            self.freed_bytes -= oldest.len();
        }
    }

    pub fn blocks(&self) -> impl Iterator<Item = &HostBlock> {
        self.blocks.values()
    }

    /// Takes a block out. Copies that are still under way are a finding; they are dropped.
    pub fn remove(&mut self, start: u64, kinds: &[HostKind]) -> Result<(HostBlock, Option<Fault>)> {
        match self.blocks.get(&start) {
            Some(block) if kinds.contains(&block.kind) => {}
            Some(block) => {
                let message = format!("{start:#x} is {}: another call frees it", block.kind.name());
                return Err(Fault::new(Code::InvalidValue, message));
            }
            None => {
                let inside = self.holding(start).map(|block| format!(", but inside the block at {:#x}", block.start()));
                let message = format!(
                    "{start:#x} is not the start of {}{}: freed twice, or never allocated?",
                    kinds[0].name(),
                    inside.unwrap_or_default()
                );
                let registered = kinds.contains(&HostKind::Registered);
                return Err(Fault::new(
                    if registered { Code::HostMemoryNotRegistered } else { Code::InvalidValue },
                    message,
                ));
            }
        }
        let to = self.deliveries.iter().find(|copy| copy.block == start).map(|copy| (Arc::clone(&copy.what), "to"));
        let from = self.sources.iter().find(|copy| copy.block == start).map(|copy| (Arc::clone(&copy.what), "from"));
        self.deliveries.retain(|copy| copy.block != start);
        self.sources.retain(|copy| copy.block != start);
        let block = self.blocks.remove(&start).expect("found above");
        let fault = to.or(from).map(|(what, way)| {
            let kind = block.kind.name();
            Fault::new(
                Code::IllegalState,
                format!("{kind} at {start:#x} is freed while {what} still copies {way} it: wait for the copy first"),
            )
        });
        Ok((block, fault))
    }

    /// A copy into pinned memory: poison now, the data at the wait.
    pub fn deliver_later(&mut self, when: When, address: u64, data: Vec<u8>, what: &Arc<str>) {
        let Some(block) = self.holding_mut(address) else { return };
        let (start, offset) = (block.start(), address - block.start());
        block.poison(offset, data.len());
        self.unwatch(start, offset, data.len() as u64);
        self.deliveries.push(Delivery { when, block: start, offset, data, what: Arc::clone(what) });
    }

    /// A copy out of pinned memory: gives its bytes, and watches them until the wait.
    pub fn watch_source(&mut self, when: When, address: u64, bytes: u64, what: &Arc<str>) -> Result<Vec<u8>> {
        let Some(block) = self.holding(address) else { return Ok(Vec::new()) };
        let (start, offset) = (block.start(), address - block.start());
        let (data, hash) = (block.read(offset, bytes)?, block.hash(offset, bytes));
        self.sources.push(PendingRead { when, block: start, offset, bytes, hash, what: Arc::clone(what) });
        Ok(data)
    }

    /// Device work writes over the source of an earlier copy: that is no change by the host.
    pub fn unwatch(&mut self, block: u64, offset: u64, bytes: u64) {
        self.sources.retain(|source| {
            source.block != block || source.offset >= offset + bytes || source.offset + source.bytes <= offset
        });
    }

    /// Delivers the copies that are ordered before an operation or that the host has waited for, in the order of the calls.
    pub fn deliver(&mut self, among: Among, done: impl Fn(When) -> bool) {
        let blocks = &mut self.blocks;
        self.deliveries.retain(|copy| {
            let Some(block) = blocks.get_mut(&copy.block) else { return false };
            let wanted = match among {
                Among::All => true,
                Among::Block(start) => start == copy.block,
                Among::Mapped => block.mapped,
            };
            if !wanted || !done(copy.when) {
                return true;
            }
            block.write(copy.offset, &copy.data);
            false
        });
    }

    /// Compares the sources of copies that are done now with what they were; the first that changed is a finding.
    pub fn check_sources(&mut self, done: impl Fn(When) -> bool) -> Option<Fault> {
        let mut fault = None;
        for source in std::mem::take(&mut self.sources) {
            if !done(source.when) {
                self.sources.push(source);
                continue;
            }
            let Some(block) = self.blocks.get(&source.block) else { continue };
            if block.hash(source.offset, source.bytes) != source.hash {
                let at = source.block + source.offset;
                let message = format!(
                    "missing synchronisation: the host changed the {} bytes at {at:#x} while {} was reading them: wait for the copy before reusing pinned memory",
                    source.bytes, source.what
                );
                fault.get_or_insert(Fault::new(Code::IllegalState, message));
            }
        }
        fault
    }
}

#[cfg(test)]
mod tests {
    use super::super::order::Order;
    use super::*;

    fn setup() -> (HostMemory, u64, When) {
        let mut memory = HostMemory::default();
        let start = memory.insert(HostBlock::allocate(HostKind::Pinned, 1, 64, 0).unwrap()).unwrap();
        let mut order = Order::default();
        let actor = order.new_actor();
        (memory, start, order.begin(actor, &[]))
    }

    fn bytes(memory: &HostMemory, start: u64) -> Vec<u8> {
        memory.holding(start).unwrap().read(0, 4).unwrap()
    }

    #[test]
    fn data_arrives_at_the_wait() {
        let (mut memory, start, when) = setup();
        memory.deliver_later(when, start, vec![1, 2, 3], &"copy".into());
        assert_eq!(bytes(&memory, start), [POISON, POISON, POISON, 0]);
        memory.deliver(Among::All, |_| false);
        memory.deliver(Among::Block(start + 1), |_| true);
        memory.deliver(Among::Mapped, |_| true);
        assert_eq!(bytes(&memory, start)[0], POISON);
        memory.deliver(Among::Block(start), |_| true);
        assert_eq!(bytes(&memory, start), [1, 2, 3, 0]);
    }

    #[test]
    fn freeing_under_a_copy_is_found() {
        let (mut memory, start, when) = setup();
        memory.deliver_later(when, start, vec![1], &"cuMemcpyDtoHAsync on stream 1".into());
        let (_, fault) = memory.remove(start, &[HostKind::Pinned]).unwrap();
        assert!(fault.unwrap().message.contains("while cuMemcpyDtoHAsync on stream 1 still copies to it"));
        assert!(memory.remove(start, &[HostKind::Pinned]).err().unwrap().message.contains("freed twice"));
    }

    #[test]
    fn a_changed_source_is_found_once() {
        let (mut memory, start, when) = setup();
        memory.watch_source(when, start, 8, &"cuMemcpyHtoDAsync on stream 1".into()).unwrap();
        assert_eq!(memory.check_sources(|_| false), None);
        memory.holding_mut(start).unwrap().write(7, &[9]);
        assert!(memory.check_sources(|_| true).unwrap().message.contains("8 bytes"));
        assert_eq!(memory.check_sources(|_| true), None);
    }

    #[test]
    fn an_unchanged_source_is_none() {
        let (mut memory, start, when) = setup();
        memory.watch_source(when, start, 8, &"copy".into()).unwrap();
        memory.holding_mut(start).unwrap().write(8, &[9]);
        assert_eq!(memory.check_sources(|_| true), None);
    }

    #[test]
    fn freed_pinned_memory_is_recognised() {
        let (mut memory, start, _) = setup();
        memory.refuse_freed(start, 8).unwrap();
        let (block, _) = memory.remove(start, &[HostKind::Pinned]).unwrap();
        memory.keep_freed(block);
        let fault = memory.refuse_freed(start + 60, 8).unwrap_err();
        assert!(
            fault.message.contains("the 64 bytes of pinned host memory") && fault.message.contains("freed already")
        );
        memory.refuse_freed(start + 64, u64::MAX).unwrap();
        memory.refuse_freed(start - 8, 8).unwrap();
        // It is kept for a while only.
        for _ in 0..MOST_FREED {
            memory.keep_freed(HostBlock::allocate(HostKind::Pinned, 1, 16, 0).unwrap());
        }
        memory.refuse_freed(start, 8).unwrap();
        memory.keep_freed(HostBlock::allocate(HostKind::Pinned, 1, MOST_FREED_BYTES, 0).unwrap());
        assert_eq!((memory.freed.len(), memory.freed_bytes), (1, MOST_FREED_BYTES));
    }

    #[test]
    fn blocks_are_found_by_any_address_inside() {
        let (memory, start, _) = setup();
        assert!(memory.holding(start + 63).is_some());
        assert!(memory.holding(start + 64).is_none());
        assert!(memory.holding(start - 1).is_none());
        assert!(memory.holding_range(start + 60, 4).is_some());
        assert!(memory.holding_range(start + 60, 5).is_none());
        assert!(memory.holding_range(start + 60, u64::MAX).is_none());
        assert!(HostBlock::allocate(HostKind::Pinned, 1, 0, 0).is_err());
        assert_eq!(HostBlock::allocate(HostKind::Pinned, 1, u64::MAX, 0).err().unwrap().code, Code::OutOfMemory);
    }
}
