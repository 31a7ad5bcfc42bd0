//! Device memory: allocating, freeing, copying, filling (CUDA Driver API, "Memory Management").
//!
//! What a copy waits for follows "API synchronization behavior": a copy from or to pageable memory is done when the call
//! returns; an asynchronous one from or to pinned memory is done when the host waits for it; filling memory and copying
//! within the device never make the host wait.

use std::sync::Arc;

use super::abi::{Handle, HostIn, HostOut, host_in, host_out};
use super::host::{Among, HostBlock, HostKind};
use super::order::{MemoryBlock, Use, When};
use super::rows::{block_use, rows_use, span};
use super::state::Driver;
use crate::fault::{Code, Fault, Result};
use crate::memory::room;

/// A copy or fill: the name of the call, its stream, and whether the host waits.
#[derive(Clone, Copy)]
pub struct Request {
    pub call: &'static str,
    pub stream: Handle,
    pub wait: bool,
}

impl Driver {
    pub fn alloc(&mut self, bytes: u64) -> Result<u64> {
        let owner = self.owner()?;
        self.device.alloc(owner, bytes)
    }

    pub fn alloc_async(&mut self, bytes: u64, pool: Handle, stream: Handle) -> Result<u64> {
        self.pools.get(pool)?;
        let owner = self.streams.get(stream)?.owner;
        let when = self.begin(stream)?;
        let address = self.device.alloc(owner, bytes)?;
        self.take_from_pool(pool, owner, address, bytes)?;
        let what = self.label("cuMemAllocAsync", stream)?;
        self.record_uses(when, &[block_use(address, address, bytes, true)], &what)?;
        Ok(address)
    }

    /// `cuMemFree` waits for the context's work, which may still use the memory, as the real driver does.
    pub fn free(&mut self, address: u64) -> Result<()> {
        if address == 0 {
            return Ok(());
        }
        self.release(self.owner()?, address)?;
        self.wait_for_context(self.current()?)
    }

    fn release(&mut self, owner: u32, address: u64) -> Result<()> {
        let kind = self.host.holding(address).map(|block| block.kind);
        if let Some(kind) = kind.filter(|&kind| kind != HostKind::Managed) {
            let message = format!("{address:#x} is {}, which cuMemFree does not free", kind.name());
            return Err(Fault::new(Code::InvalidValue, message));
        }
        self.device.free(owner, address)?;
        self.give_back_to_pool(address);
        self.order.forget(MemoryBlock(address));
        if kind.is_some() {
            self.host.remove(address, &[HostKind::Managed])?;
        }
        Ok(())
    }

    pub fn free_async(&mut self, address: u64, stream: Handle) -> Result<()> {
        let owner = self.streams.get(stream)?.owner;
        let when = self.begin(stream)?;
        let what = self.label("cuMemFreeAsync", stream)?;
        // The device words the diagnosis of an address that it does not know.
        let used = match self.device.allocation(address) {
            Ok((start, bytes)) => self.record_uses(when, &[block_use(start, start, bytes, true)], &what),
            Err(_) => Ok(()),
        };
        self.release(owner, address)?;
        used
    }

    /// Copies from the host to the device.
    pub fn copy_in(&mut self, request: Request, to: u64, from: HostIn, bytes: usize) -> Result<()> {
        self.copy_in_rows(request, (to, 0), (from, 0), (bytes, 1))
    }

    /// Copies rows, each a pitch behind the one before, from the host to the device; `size` is the bytes of a row, and
    /// the number of rows.
    pub fn copy_in_rows(
        &mut self,
        request: Request,
        to: (u64, usize),
        from: (HostIn, usize),
        size: (usize, usize),
    ) -> Result<()> {
        let Some((owner, when, what)) = self.start(request, size)? else { return Ok(()) };
        let source = (from.0.address() as u64, from.1);
        self.refuse_device_pointer(source.0, "the source, host memory,")?;
        let mut uses = self.device_uses(to, size, true)?;
        let pinned = self.pinned(source, size)?;
        if let Some(block) = pinned {
            self.deliver_before(when, Among::Block(block));
            uses.extend(rows_use(block, source, size, false));
        }
        for row in 0..size.1 {
            let (to, from) = (to.0 + (row * to.1) as u64, from.0.plus(row * from.1));
            let address = from.address() as u64;
            if pinned.is_none() {
                self.device.write(owner, to, from.bytes(size.0, "the source of the copy")?)?;
            } else if request.wait {
                let block = self.host.holding(address);
                let data = block.map(|block| block.read(address - block.start(), size.0 as u64)).transpose()?;
                self.device.write(owner, to, &data.unwrap_or_default())?;
            } else {
                let data = self.host.watch_source(when, address, size.0 as u64, &what)?;
                self.device.write(owner, to, &data)?;
            }
            self.mirror_to_host(owner, to, size.0 as u64)?;
        }
        let unordered = self.record_uses(when, &uses, &what);
        self.finish(request)?;
        unordered
    }

    /// Copies from the device to the host.
    pub fn copy_out(&mut self, request: Request, to: HostOut, from: u64, bytes: usize) -> Result<()> {
        self.copy_out_rows(request, (to, 0), (from, 0), (bytes, 1))
    }

    /// Copies rows from the device to the host; `size` is the bytes of a row, and the number of rows.
    pub fn copy_out_rows(
        &mut self,
        request: Request,
        to: (HostOut, usize),
        from: (u64, usize),
        size: (usize, usize),
    ) -> Result<()> {
        let Some((owner, when, what)) = self.start(request, size)? else { return Ok(()) };
        let destination = (to.0.address() as u64, to.1);
        self.refuse_device_pointer(destination.0, "the destination, host memory,")?;
        let mut uses = self.device_uses(from, size, false)?;
        self.mirror_to_device(when, owner, from.0)?;
        let pinned = self.pinned(destination, size)?;
        if let Some(block) = pinned {
            uses.extend(rows_use(block, destination, size, true));
        }
        for row in 0..size.1 {
            let (to, from) = (to.0.plus(row * to.1), from.0 + (row * from.1) as u64);
            if pinned.is_some() {
                let mut data = room::zeroed(size.0)?;
                self.device.read(owner, from, &mut data)?;
                self.host.deliver_later(when, to.address() as u64, data, &what);
            } else {
                self.device.read(owner, from, to.bytes(size.0, "the destination of the copy")?)?;
            }
        }
        let unordered = self.record_uses(when, &uses, &what);
        // To pageable memory the call itself waits.
        self.finish(Request { wait: request.wait || pinned.is_none(), ..request })?;
        unordered
    }

    /// Copies within the device.
    pub fn copy_within(&mut self, request: Request, to: u64, from: u64, bytes: usize) -> Result<()> {
        self.copy_within_rows(request, (to, 0), (from, 0), (bytes, 1))
    }

    /// Copies rows within the device; `size` is the bytes of a row, and the number of rows.
    pub fn copy_within_rows(
        &mut self,
        request: Request,
        to: (u64, usize),
        from: (u64, usize),
        size: (usize, usize),
    ) -> Result<()> {
        let Some((owner, when, what)) = self.start(request, size)? else { return Ok(()) };
        let mut uses = self.device_uses(from, size, false)?;
        uses.extend(self.device_uses(to, size, true)?);
        self.mirror_to_device(when, owner, from.0)?;
        for row in 0..size.1 {
            let (to, from) = (to.0 + (row * to.1) as u64, from.0 + (row * from.1) as u64);
            self.device.copy(owner, to, from, size.0 as u64)?;
            self.mirror_to_host(owner, to, size.0 as u64)?;
        }
        self.record_uses(when, &uses, &what)
    }

    /// `cuMemcpyPeer`: each address belongs to its own context.
    pub fn copy_peer(&mut self, request: Request, to: (u64, Handle), from: (u64, Handle), bytes: usize) -> Result<()> {
        let owners = (self.contexts.get(to.1)?.owner, self.contexts.get(from.1)?.owner);
        let (to, from) = (to.0, from.0);
        let Some((_, when, what)) = self.start(request, (bytes, 1))? else { return Ok(()) };
        let mut uses = self.device_uses((from, 0), (bytes, 1), false)?;
        uses.extend(self.device_uses((to, 0), (bytes, 1), true)?);
        self.mirror_to_device(when, owners.1, from)?;
        if owners.0 == owners.1 {
            self.device.copy(owners.0, to, from, bytes as u64)?;
        } else {
            // Between contexts the copied values count as initialised.
            let mut data = room::zeroed(bytes)?;
            self.device.read(owners.1, from, &mut data)?;
            self.device.write(owners.0, to, &data)?;
        }
        self.mirror_to_host(owners.0, to, bytes as u64)?;
        self.record_uses(when, &uses, &what)
    }

    /// `cuMemcpy`: each address says itself where it lies.
    pub fn copy_any(&mut self, request: Request, to: u64, from: u64, bytes: usize) -> Result<()> {
        self.copy_any_rows(request, (to, 0), (from, 0), (bytes, 1))
    }

    /// Copies rows, where each address says itself where it lies; `size` is the bytes of a row, and the number of rows.
    pub fn copy_any_rows(
        &mut self,
        request: Request,
        to: (u64, usize),
        from: (u64, usize),
        size: (usize, usize),
    ) -> Result<()> {
        match (self.device.allocation(to.0).is_ok(), self.device.allocation(from.0).is_ok()) {
            (true, true) => self.copy_within_rows(request, to, from, size),
            (true, false) => self.copy_in_rows(request, to, (host_in(from.0), from.1), size),
            (false, true) => self.copy_out_rows(request, (host_out(to.0), to.1), from, size),
            (false, false) => self.copy_host_rows(to, from, size),
        }
    }

    /// Copies rows within the host.
    pub fn copy_host_rows(&mut self, to: (u64, usize), from: (u64, usize), size: (usize, usize)) -> Result<()> {
        self.host.refuse_freed(from.0, span(from, size)?)?;
        self.host.refuse_freed(to.0, span(to, size)?)?;
        for row in 0..size.1 {
            let (to, from) = (to.0 + (row * to.1) as u64, from.0 + (row * from.1) as u64);
            let source = room::copied(host_in(from).bytes(size.0, "the source of the copy")?)?;
            host_out(to).bytes(size.0, "the destination of the copy")?.copy_from_slice(&source);
        }
        Ok(())
    }

    /// Fills memory with a pattern of 1, 2 or 4 bytes.
    pub fn fill(&mut self, request: Request, to: u64, pattern: &[u8], count: usize) -> Result<()> {
        self.fill_rows(request, (to, 0), pattern, (count, 1))
    }

    /// Fills rows, each a pitch behind the one before, with a pattern of 1, 2 or 4 bytes; `size` is the elements of a
    /// row, and the number of rows.
    pub fn fill_rows(
        &mut self,
        request: Request,
        to: (u64, usize),
        pattern: &[u8],
        size: (usize, usize),
    ) -> Result<()> {
        let bytes = size.0.checked_mul(pattern.len());
        let bytes = bytes.ok_or_else(|| Fault::new(Code::InvalidValue, format!("{} elements are too many", size.0)))?;
        let Some((owner, when, what)) = self.start(request, (bytes, size.1))? else { return Ok(()) };
        let pitch = if size.1 > 1 { to.1 } else { 0 };
        if ![to.0, pitch as u64].iter().all(|address| address.is_multiple_of(pattern.len() as u64)) {
            let apart = if size.1 > 1 { format!(", rows {pitch} bytes apart,") } else { String::new() };
            let (call, bytes) = (request.call, pattern.len());
            let message = format!("{call}: {:#x}{apart} is not aligned to the pattern's {bytes} bytes", to.0);
            return Err(Fault::new(Code::InvalidValue, message));
        }
        let uses = self.device_uses(to, (bytes, size.1), true)?;
        for row in 0..size.1 {
            let to = to.0 + (row * to.1) as u64;
            self.device.fill(owner, to, pattern, size.0 as u64)?;
            self.mirror_to_host(owner, to, bytes as u64)?;
        }
        self.record_uses(when, &uses, &what)
    }

    /// Starts an operation on some rows of some bytes; none where there is nothing to do.
    fn start(&mut self, request: Request, size: (usize, usize)) -> Result<Option<(u32, When, Arc<str>)>> {
        let owner = self.streams.get(request.stream)?.owner;
        if size.0 == 0 || size.1 == 0 {
            return Ok(None);
        }
        Ok(Some((owner, self.begin(request.stream)?, self.label(request.call, request.stream)?)))
    }

    fn finish(&mut self, request: Request) -> Result<()> {
        if request.wait { self.wait_for_streams(&[request.stream]) } else { Ok(()) }
    }

    /// The uses of rows of device memory.
    fn device_uses(&self, rows: (u64, usize), size: (usize, usize), written: bool) -> Result<Vec<Use>> {
        if rows.0 == 0 {
            return Err(Fault::new(Code::InvalidValue, "the device address is a null pointer"));
        }
        let (start, bytes) = self.device.allocation(rows.0)?;
        let span = span(rows, size)?;
        // A single row that leaves its allocation is the device's to refuse.
        if size.1 > 1 && span > bytes - (rows.0 - start) {
            let message = format!(
                "{} rows of {} bytes, {} apart, at {:#x} leave the {bytes}-byte allocation at {start:#x}",
                size.1, size.0, rows.1, rows.0
            );
            return Err(Fault::new(Code::InvalidValue, message));
        }
        Ok(rows_use(start, rows, size, written))
    }

    /// A device address where host memory is expected: dereferencing it would crash.
    fn refuse_device_pointer(&self, address: u64, what: &str) -> Result<()> {
        if self.host.holding(address).is_none() && self.device.allocation(address).is_ok() {
            return Err(Fault::new(Code::InvalidValue, format!("{what} is at {address:#x}, which is device memory")));
        }
        Ok(())
    }

    /// The pinned block that holds rows of host memory; an error where they begin inside a block and leave it, and where the
    /// block was freed.
    fn pinned(&self, rows: (u64, usize), size: (usize, usize)) -> Result<Option<u64>> {
        let (address, bytes) = (rows.0, span(rows, size)?);
        self.host.refuse_freed(address, bytes)?;
        let Some(block) = self.host.holding(address).filter(|block| block.kind != HostKind::Managed) else {
            return Ok(None);
        };
        if self.host.holding_range(address, bytes).is_none() {
            let message = format!(
                "{bytes} bytes at {address:#x} leave the {} bytes of {} at {:#x}",
                block.len(),
                block.kind.name(),
                block.start()
            );
            return Err(Fault::new(Code::InvalidValue, message));
        }
        Ok(Some(block.start()))
    }

    /// Delivers the copies to pinned memory that come before an operation which uses such memory itself.
    pub fn deliver_before(&mut self, when: When, among: Among) {
        let clock = self.order.clock(when.actor);
        self.host.deliver(among, |copy| clock.covers(copy));
    }

    /// A host function runs after an operation: what comes before is done, its data is there, and the sources that it read
    /// may change again. Gives the source that changed too early, if one did.
    pub fn reached(&mut self, when: When) -> Option<Fault> {
        let clock = self.order.clock(when.actor);
        let changed = self.host.check_sources(|copy| clock.covers(copy));
        self.deliver_before(when, Among::All);
        changed
    }

    /// Makes host memory usable on the device, at the same address.
    pub fn map(&mut self, address: u64) -> Result<u64> {
        let Some(block) = self.host.holding_mut(address) else {
            return Err(Fault::new(
                Code::InvalidValue,
                format!("{address:#x} is not pinned or registered host memory"),
            ));
        };
        if !block.mapped {
            self.device.alloc_at(block.owner, block.start(), block.len())?;
            block.mapped = true;
        }
        Ok(address)
    }

    pub fn alloc_managed(&mut self, bytes: u64) -> Result<u64> {
        let block = HostBlock::allocate(HostKind::Managed, self.owner()?, bytes, 0)?;
        let start = self.host.insert(block)?;
        if let Err(fault) = self.map(start) {
            self.host.remove(start, &[HostKind::Managed])?;
            return Err(fault);
        }
        Ok(start)
    }

    pub fn alloc_host(&mut self, bytes: u64, flags: u32) -> Result<u64> {
        self.host.insert(HostBlock::allocate(HostKind::Pinned, self.owner()?, bytes, flags)?)
    }

    /// `cuMemFreeHost` and `cuMemHostUnregister`.
    pub fn free_host(&mut self, address: u64, kind: HostKind) -> Result<()> {
        self.current()?;
        let (block, fault) = self.host.remove(address, &[kind])?;
        if block.mapped {
            self.device.free(block.owner, address)?;
        }
        self.order.forget(MemoryBlock(address));
        self.host.keep_freed(block);
        fault.map_or(Ok(()), Err)
    }

    /// Copies the mapped block that holds an address to the device, for an operation.
    fn mirror_to_device(&mut self, when: When, owner: u32, address: u64) -> Result<()> {
        let Some(start) = self.host.holding(address).filter(|block| block.mapped).map(|block| block.start()) else {
            return Ok(());
        };
        self.deliver_before(when, Among::Block(start));
        let data = self.host.holding(start).map(|block| block.read(0, block.len())).transpose()?.unwrap_or_default();
        self.device.write(owner, start, &data)
    }

    /// Copies what device work wrote into a mapped block to the host.
    pub fn mirror_to_host(&mut self, owner: u32, address: u64, bytes: u64) -> Result<()> {
        let Some(block) = self.host.holding_mut(address).filter(|block| block.mapped) else { return Ok(()) };
        let (start, offset) = (block.start(), address - block.start());
        let mut data = room::zeroed(bytes.min(block.len() - offset) as usize)?;
        self.device.read(owner, address, &mut data)?;
        block.write(offset, &data);
        self.host.unwatch(start, offset, bytes);
        Ok(())
    }

    /// Copies all mapped memory of a context to the device: a kernel may follow any pointer.
    pub fn mirror_all_to_device(&mut self, owner: u32) -> Result<()> {
        for block in self.host.blocks().filter(|block| block.mapped && block.owner == owner) {
            self.device.write(owner, block.start(), &block.read(0, block.len())?)?;
        }
        Ok(())
    }
}
