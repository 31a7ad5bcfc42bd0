//! Device memory: allocations at addresses that are never used twice, with gaps between them, so that an access past
//! an end or after a free always meets what it did wrong.

use super::clock::LaunchClock;
use super::init::Initialised;
use super::room;
use super::shadow::Shadow;
use crate::fault::{Code, Fault, Result, shown};

/// The first device address. Everything below belongs to the generic windows (`program.rs`) and to nothing.
const FIRST: u64 = 0x7_0000_0000_0000;
/// Allocations begin at multiples of this, as on a card.
const ALIGN: u64 = 512;
/// Unused bytes after each allocation, at least.
const GAP: u64 = 4096;

#[derive(Debug)]
pub struct Allocation {
    pub base: u64,
    pub bytes: u64,
    pub owner: u32,
    /// "allocation 3", or "variable `weights`".
    pub label: String,
    pub freed: bool,
    /// `.const` variables can't be written by kernels.
    pub constant: bool,
    pub data: Vec<u8>,
    pub initialised: Initialised,
    pub shadow: Shadow,
    /// What the running launch touched: (begin, end) offsets of reads and of writes.
    pub read: Option<(u64, u64)>,
    pub written: Option<(u64, u64)>,
}

impl Allocation {
    /// "allocation 3 (4096 bytes at 0x…)"
    pub fn describe(&self) -> String {
        format!("{} ({} bytes at {:#x})", self.label, self.bytes, self.base)
    }

    #[inline(always)]
    pub fn touch(&mut self, begin: u64, end: u64, written: bool) {
        let range = if written { &mut self.written } else { &mut self.read };
        *range = Some(match *range {
            Some((b, e)) => (b.min(begin), e.max(end)),
            None => (begin, end),
        });
    }
}

#[derive(Debug)]
pub struct Memory {
    /// Sorted by address; freed ones stay, without their data.
    pub allocations: Vec<Allocation>,
    next: u64,
    pub used: u64,
    pub capacity: u64,
    made: u64,
    /// Freed allocations that are still remembered.
    freed: usize,
    /// The context whose kernel runs: other contexts' memory is out of its reach.
    running: Option<u32>,
    pub clock: LaunchClock,
}

impl Memory {
    pub fn new(capacity: u64) -> Memory {
        Memory {
            allocations: Vec::new(),
            next: FIRST,
            used: 0,
            capacity,
            made: 0,
            freed: 0,
            running: None,
            clock: LaunchClock::default(),
        }
    }

    /// Memory in which nothing is initialised.
    pub fn alloc(&mut self, owner: u32, bytes: u64) -> Result<u64> {
        let label = format!("allocation {}", self.made + 1);
        let base = self.place(owner, bytes, label, Initialised::none)?;
        self.made += 1;
        Ok(base)
    }

    /// Memory for a module's variable: zeros.
    pub fn alloc_variable(&mut self, owner: u32, bytes: u64, name: &str) -> Result<u64> {
        self.place(owner, bytes.max(1), format!("variable `{}`", shown(name)), |_| Ok(Initialised::All))
    }

    fn place(
        &mut self,
        owner: u32,
        bytes: u64,
        label: String,
        initialised: impl FnOnce(usize) -> Result<Initialised>,
    ) -> Result<u64> {
        if bytes == 0 {
            return Err(Fault::new(Code::InvalidValue, "allocation of 0 bytes: expected at least 1"));
        }
        if bytes > self.capacity - self.used {
            let free = self.capacity - self.used;
            let message = format!("out of memory: {bytes} bytes asked for, {free} of {} are free", self.capacity);
            return Err(Fault::new(Code::OutOfMemory, message));
        }
        self.forget_freed();
        let base = self.next;
        let data = room::zeroed(bytes as usize)?;
        let initialised = initialised(bytes as usize)?;
        self.next = (base + bytes + GAP).next_multiple_of(ALIGN);
        self.used += bytes;
        self.allocations.push(Allocation {
            base,
            bytes,
            owner,
            label,
            freed: false,
            constant: false,
            data,
            initialised,
            shadow: Shadow::default(),
            read: None,
            written: None,
        });
        Ok(base)
    }

    /// An allocation at an address of the host's; it takes the place of freed ones that were there.
    pub fn alloc_at(&mut self, owner: u32, address: u64, bytes: u64) -> Result<()> {
        let overlaps = |a: &Allocation| a.base < address.saturating_add(bytes) && address < a.base + a.bytes;
        if let Some(live) = self.allocations.iter().find(|a| !a.freed && overlaps(a)) {
            let text = format!("{bytes} bytes at {address:#x} overlap {}", live.describe());
            return Err(Fault::new(Code::InvalidValue, text));
        }
        let next = self.next;
        self.alloc(owner, bytes)?;
        self.next = next;
        let mut made = self.allocations.pop().expect("just made");
        made.base = address;
        self.allocations.retain(|a| !overlaps(a));
        let at = self.allocations.partition_point(|a| a.base <= address);
        self.allocations.insert(at, made);
        Ok(())
    }

    /// The allocation, live or freed, with the greatest base not above `address`.
    pub fn below(&self, address: u64) -> Option<usize> {
        self.allocations.partition_point(|a| a.base <= address).checked_sub(1)
    }

    /// The live allocation that holds `bytes` at `address`, if it is in reach of the running kernel.
    #[inline(always)]
    pub fn find(&self, address: u64, bytes: u64) -> Option<usize> {
        let index = self.below(address)?;
        let a = &self.allocations[index];
        let inside = address - a.base <= a.bytes && bytes <= a.bytes - (address - a.base);
        (!a.freed && inside && self.running.is_none_or(|owner| owner == a.owner)).then_some(index)
    }

    /// Why `bytes` at `address` are not there: code and text.
    pub fn explain(&self, address: u64, bytes: u64) -> (Code, String) {
        let Some(index) = self.below(address) else {
            let near = match self.allocations.iter().find(|a| !a.freed) {
                Some(first) if address < FIRST && address >= first.base.saturating_sub(1 << 20) => {
                    format!("{} bytes before {}", first.base - address, first.describe())
                }
                _ => "no allocation is near".to_string(),
            };
            return (Code::IllegalAddress, format!("out of bounds: {address:#x}, {near}"));
        };
        let below = &self.allocations[index];
        let inside = address < below.base + below.bytes;
        if below.freed && inside {
            return (Code::IllegalAddress, format!("use after free: {address:#x} in freed {}", below.describe()));
        }
        if let Some(owner) = self.running
            && inside
            && below.owner != owner
        {
            let text =
                format!("{address:#x} in {} of context {}, used in context {owner}", below.describe(), below.owner);
            return (Code::IllegalAddress, text);
        }
        if inside {
            let past = address + bytes - (below.base + below.bytes);
            let text =
                format!("out of bounds: {address:#x}, its last {past} bytes past the end of {}", below.describe());
            return (Code::IllegalAddress, text);
        }
        let after = address - (below.base + below.bytes);
        let next = self.allocations.get(index + 1).filter(|next| next.base - address < after);
        let text = match next {
            Some(next) => format!("{} bytes before {}", next.base - address, next.describe()),
            None => format!("{after} bytes past the end of {}", below.describe()),
        };
        let freed = if below.freed && next.is_none() { " (freed)" } else { "" };
        (Code::IllegalAddress, format!("out of bounds: {address:#x}, {text}{freed}"))
    }

    /// The allocation for an access of a host call by `owner`.
    pub fn host_find(&self, owner: u32, address: u64, bytes: u64) -> Result<usize> {
        let Some(index) = self.find(address, bytes) else {
            let (_, text) = self.explain(address, bytes);
            return Err(Fault::new(Code::InvalidValue, format!("{bytes} bytes at {address:#x}: {text}")));
        };
        let found = &self.allocations[index];
        if found.owner != owner {
            let text = format!("{} belongs to context {}, used in context {owner}", found.describe(), found.owner);
            return Err(Fault::new(Code::InvalidValue, text));
        }
        Ok(index)
    }

    pub fn free(&mut self, owner: u32, address: u64) -> Result<()> {
        let found = self.below(address).filter(|&i| address - self.allocations[i].base < self.allocations[i].bytes);
        let Some(index) = found else {
            let text = format!("free of {address:#x}: expected an address that an allocation returned");
            return Err(Fault::new(Code::InvalidValue, text));
        };
        let found = &mut self.allocations[index];
        let problem = if found.freed {
            Some("was freed already".to_string())
        } else if found.base != address {
            Some(format!("begins {} bytes before it", address - found.base))
        } else if found.owner != owner {
            Some(format!("belongs to context {}, freed in context {owner}", found.owner))
        } else {
            None
        };
        if let Some(problem) = problem {
            return Err(Fault::new(
                Code::InvalidValue,
                format!("free of {address:#x}: {} {problem}", found.describe()),
            ));
        }
        self.release(index);
        Ok(())
    }

    /// A new launch begins. Long before time runs out it starts anew, and all records with it.
    pub fn begin_launch(&mut self, owner: u32) {
        self.running = Some(owner);
        const LATE: u32 = 1 << 30;
        if self.clock.now > LATE {
            self.clock = LaunchClock::default();
            self.allocations.iter_mut().for_each(|allocation| allocation.shadow.clear());
        }
        self.clock.begin();
        for allocation in &mut self.allocations {
            (allocation.read, allocation.written) = (None, None);
        }
    }

    pub fn end_launch(&mut self) {
        self.running = None;
    }

    /// Gives an allocation's memory back and remembers that it was there, as long as it is among the latest.
    pub fn release(&mut self, index: usize) {
        self.freed += 1;
        let found = &mut self.allocations[index];
        self.used -= found.bytes;
        found.freed = true;
        found.data = Vec::new();
        found.initialised = Initialised::All;
        found.shadow.clear();
    }
    /// Forgets the older half of the freed allocations once there are many. Indices change.
    pub fn forget_freed(&mut self) {
        const MANY: usize = 8192;
        if self.freed <= MANY {
            return;
        }
        let mut surplus = self.freed - MANY / 2;
        self.allocations.retain(|allocation| {
            let forget = allocation.freed && surplus > 0;
            surplus -= forget as usize;
            !forget
        });
        self.freed = self.allocations.iter().filter(|allocation| allocation.freed).count();
    }
}
