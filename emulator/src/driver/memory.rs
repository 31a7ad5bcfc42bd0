//! Device memory: allocating, freeing, copying, filling (CUDA Driver API, "Memory Management").
//!
//! What a copy waits for follows "API synchronization behavior": a copy from or to pageable memory is done when the call
//! returns; an asynchronous one from or to pinned memory is done when the host waits for it; filling memory and copying
//! within the device never make the host wait.

use std::sync::Arc;

use super::abi::{Handle, HostIn, HostOut, host_in, host_out};
use super::host::{HostBlock, HostKind};
use super::order::{Block, Use, When};
use super::state::Driver;
use crate::fault::{Code, Fault, Result};

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

    pub fn alloc_async(&mut self, bytes: u64, stream: Handle) -> Result<u64> {
        let owner = self.streams.get(stream)?.owner;
        let when = self.begin(stream)?;
        let address = self.device.alloc(owner, bytes)?;
        let what = self.label("cuMemAllocAsync", stream)?;
        self.record_uses(when, &[device_use(address, address, bytes, true)], &what)?;
        Ok(address)
    }

    /// `cuMemFree` waits for the work that may still use the memory, as the real driver does.
    pub fn free(&mut self, address: u64) -> Result<()> {
        if address == 0 {
            return Ok(());
        }
        self.release(self.owner()?, address)
    }

    fn release(&mut self, owner: u32, address: u64) -> Result<()> {
        let kind = self.host.holding(address).map(|block| block.kind);
        if let Some(kind) = kind.filter(|&kind| kind != HostKind::Managed) {
            let message = format!("{address:#x} is {}, which cuMemFree does not free", kind.name());
            return Err(Fault::new(Code::InvalidValue, message));
        }
        self.device.free(owner, address)?;
        self.order.forget(Block::Device(address));
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
            Ok((start, bytes)) => self.record_uses(when, &[device_use(start, start, bytes, true)], &what),
            Err(_) => Ok(()),
        };
        self.release(owner, address)?;
        used
    }

    /// Host to device.
    pub fn copy_in(&mut self, request: Request, to: u64, from: HostIn, bytes: usize) -> Result<()> {
        let Some((owner, when, what)) = self.start(request, bytes)? else { return Ok(()) };
        self.refuse_device_pointer(from.address() as u64, "the source, host memory,")?;
        let mut uses = vec![self.device_range(to, bytes as u64, true)?];
        match self.pinned(from.address() as u64, bytes)? {
            Some(block) => {
                self.deliver_before(when);
                let address = from.address() as u64;
                uses.push(host_use(block, address, bytes as u64, false));
                let data = if request.wait {
                    self.host.holding(address).map(|block| block.read(address - block.start(), bytes as u64))
                } else {
                    Some(self.host.watch_source(when, address, bytes as u64, &what))
                };
                self.device.write(owner, to, &data.unwrap_or_default())?;
            }
            None => self.device.write(owner, to, from.bytes(bytes, "the source of the copy")?)?,
        }
        self.mirror_to_host(owner, to, bytes as u64)?;
        let unordered = self.record_uses(when, &uses, &what);
        self.finish(request)?;
        unordered
    }

    /// Device to host.
    pub fn copy_out(&mut self, request: Request, to: HostOut, from: u64, bytes: usize) -> Result<()> {
        let Some((owner, when, what)) = self.start(request, bytes)? else { return Ok(()) };
        self.refuse_device_pointer(to.address() as u64, "the destination, host memory,")?;
        let mut uses = vec![self.device_range(from, bytes as u64, false)?];
        self.mirror_to_device(owner, from)?;
        let pinned = self.pinned(to.address() as u64, bytes)?;
        match pinned {
            Some(block) => {
                self.deliver_before(when);
                let address = to.address() as u64;
                uses.push(host_use(block, address, bytes as u64, true));
                let mut data = vec![0; bytes];
                self.device.read(owner, from, &mut data)?;
                self.host.deliver_later(when, address, data, &what);
            }
            None => self.device.read(owner, from, to.bytes(bytes, "the destination of the copy")?)?,
        }
        let unordered = self.record_uses(when, &uses, &what);
        // To pageable memory the call itself waits.
        self.finish(Request { wait: request.wait || pinned.is_none(), ..request })?;
        unordered
    }

    /// Within the device.
    pub fn copy_within(&mut self, request: Request, to: u64, from: u64, bytes: usize) -> Result<()> {
        let Some((owner, when, what)) = self.start(request, bytes)? else { return Ok(()) };
        let bytes = bytes as u64;
        let uses = [self.device_range(from, bytes, false)?, self.device_range(to, bytes, true)?];
        self.mirror_to_device(owner, from)?;
        self.device.copy(owner, to, from, bytes)?;
        self.mirror_to_host(owner, to, bytes)?;
        self.record_uses(when, &uses, &what)
    }

    /// `cuMemcpy`: each address says itself where it lies.
    pub fn copy_any(&mut self, request: Request, to: u64, from: u64, bytes: usize) -> Result<()> {
        match (self.device.allocation(to).is_ok(), self.device.allocation(from).is_ok()) {
            (true, true) => self.copy_within(request, to, from, bytes),
            (true, false) => self.copy_in(request, to, host_in(from), bytes),
            (false, true) => self.copy_out(request, host_out(to), from, bytes),
            (false, false) => {
                let source = host_in(from).bytes(bytes, "the source of the copy")?.to_vec();
                host_out(to).bytes(bytes, "the destination of the copy")?.copy_from_slice(&source);
                Ok(())
            }
        }
    }

    /// Fills memory with a pattern of 1, 2 or 4 bytes.
    pub fn fill(&mut self, request: Request, to: u64, pattern: &[u8], count: usize) -> Result<()> {
        let bytes = count.checked_mul(pattern.len());
        let bytes = bytes.ok_or_else(|| Fault::new(Code::InvalidValue, format!("{count} elements are too many")))?;
        let Some((owner, when, what)) = self.start(request, bytes)? else { return Ok(()) };
        if !to.is_multiple_of(pattern.len() as u64) {
            let message = format!("{}: {to:#x} is not aligned to the pattern's {} bytes", request.call, pattern.len());
            return Err(Fault::new(Code::InvalidValue, message));
        }
        let used = self.device_range(to, bytes as u64, true)?;
        self.device.fill(owner, to, pattern, count as u64)?;
        self.mirror_to_host(owner, to, bytes as u64)?;
        self.record_uses(when, &[used], &what)
    }

    /// Starts an operation; none where there is nothing to do.
    fn start(&mut self, request: Request, bytes: usize) -> Result<Option<(u32, When, Arc<str>)>> {
        let owner = self.streams.get(request.stream)?.owner;
        if bytes == 0 {
            return Ok(None);
        }
        Ok(Some((owner, self.begin(request.stream)?, self.label(request.call, request.stream)?)))
    }

    fn finish(&mut self, request: Request) -> Result<()> {
        if request.wait { self.wait_for_streams(&[request.stream]) } else { Ok(()) }
    }

    /// The use of a range of device memory. A range that leaves its allocation is the device's to refuse.
    fn device_range(&self, address: u64, bytes: u64, written: bool) -> Result<Use> {
        let (start, _) = self.device.allocation(address)?;
        Ok(device_use(start, address, bytes, written))
    }

    /// A device address where host memory is expected: dereferencing it would crash.
    fn refuse_device_pointer(&self, address: u64, what: &str) -> Result<()> {
        if self.host.holding(address).is_none() && self.device.allocation(address).is_ok() {
            return Err(Fault::new(Code::InvalidValue, format!("{what} is at {address:#x}, which is device memory")));
        }
        Ok(())
    }

    /// The pinned block that holds a range of host memory; an error where it begins inside a block and leaves it.
    fn pinned(&self, address: u64, bytes: usize) -> Result<Option<u64>> {
        let Some(block) = self.host.holding(address).filter(|block| block.kind != HostKind::Managed) else {
            return Ok(None);
        };
        if self.host.holding_range(address, bytes as u64).is_none() {
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
    pub fn deliver_before(&mut self, when: When) {
        let clock = self.order.clock(when.actor);
        self.host.deliver(|copy| clock.covers(copy));
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
            self.order.forget(Block::Device(address));
        }
        self.order.forget(Block::Host(address));
        fault.map_or(Ok(()), Err)
    }

    /// Copies the mapped block that holds an address to the device.
    fn mirror_to_device(&mut self, owner: u32, address: u64) -> Result<()> {
        match self.host.holding(address) {
            Some(block) if block.mapped => self.device.write(owner, block.start(), &block.read(0, block.len())),
            _ => Ok(()),
        }
    }

    /// Copies what device work wrote into a mapped block to the host.
    pub fn mirror_to_host(&mut self, owner: u32, address: u64, bytes: u64) -> Result<()> {
        let Some(block) = self.host.holding_mut(address).filter(|block| block.mapped) else { return Ok(()) };
        let (start, offset) = (block.start(), address - block.start());
        let mut data = vec![0; bytes.min(block.len() - offset) as usize];
        self.device.read(owner, address, &mut data)?;
        block.write(offset, &data);
        self.host.unwatch(start, offset, bytes);
        Ok(())
    }

    /// Copies all mapped memory of a context to the device: a kernel may follow any pointer.
    pub fn mirror_all_to_device(&mut self, owner: u32) -> Result<()> {
        for block in self.host.blocks().filter(|block| block.mapped && block.owner == owner) {
            self.device.write(owner, block.start(), &block.read(0, block.len()))?;
        }
        Ok(())
    }
}

pub fn device_use(start: u64, address: u64, bytes: u64, written: bool) -> Use {
    Use { block: Block::Device(start), begin: address, end: address.saturating_add(bytes), written }
}

fn host_use(block: u64, address: u64, bytes: u64, written: bool) -> Use {
    Use { block: Block::Host(block), begin: address, end: address.saturating_add(bytes), written }
}
