//! Memory (CUDA Driver API, "Memory Management", "Stream Ordered Memory Allocator", "Unified Addressing").

use super::{c_api, public_name};
use crate::driver::abi::{Handle, HostIn, HostOut, In, Out, host_in, host_out};
use crate::driver::host::{HostBlock, HostKind};
use crate::driver::memory::Request;
use crate::driver::pointer::Value;
use crate::driver::pool::Pool;
use crate::driver::state::Driver;
use crate::driver::stream::Null;
use crate::fault::{Code, Fault, Result};

/// `CUmemLocation`
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Location {
    kind: u32,
    id: i32,
}

/// `CUDA_MEMCPY2D`
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Copy2D {
    from: Plane,
    to: Plane,
    width: usize,
    height: usize,
}

/// One side of it.
#[repr(C)]
#[derive(Clone, Copy)]
struct Plane {
    x: usize,
    y: usize,
    kind: u32,
    host: usize,
    device: u64,
    array: usize,
    pitch: usize,
}

impl Plane {
    /// Whether it is host memory, and the address of its first byte.
    fn start(&self, width: usize, height: usize) -> Result<(bool, u64)> {
        const HOST: u32 = 1;
        const DEVICE: u32 = 2;
        const UNIFIED: u32 = 4;
        let refuse = |message: String| Err(Fault::new(Code::InvalidValue, message));
        let too_far = || Fault::new(Code::InvalidValue, "a plane of the copy does not fit the address space");
        let row = self.x.checked_add(width).ok_or_else(too_far)?;
        if self.pitch < row && (self.pitch != 0 || height > 1) {
            return refuse(format!("a row of {row} bytes does not fit the pitch of {} bytes", self.pitch));
        }
        let skip = self.y.checked_mul(self.pitch).and_then(|skip| skip.checked_add(self.x)).ok_or_else(too_far)?;
        let after = |base: u64| base.checked_add(skip as u64).ok_or_else(too_far);
        match self.kind {
            HOST => Ok((true, after(self.host as u64)?)),
            DEVICE | UNIFIED => Ok((false, after(self.device)?)),
            3 => Err(Fault::new(Code::NotSupported, "CUDA arrays are not emulated")),
            kind => refuse(format!("memory type {kind} is not known")),
        }
    }
}

fn copy_2d(d: &mut Driver, copy: In<Copy2D>, stream: Handle, null: Null, wait: bool) -> Result<()> {
    let copy = copy.get("pCopy")?;
    let request = Request { call: "cuMemcpy2D", stream: d.stream_for_work(stream, null)?, wait };
    let size = (copy.width, copy.height);
    let (from, to) = (copy.from.start(size.0, size.1)?, copy.to.start(size.0, size.1)?);
    if size.0 == 0 || size.1 == 0 {
        return Ok(());
    }
    let (source, destination) = ((from.1, copy.from.pitch), (to.1, copy.to.pitch));
    match (from.0, to.0) {
        (true, false) => d.copy_in_rows(request, destination, (host_in(source.0), source.1), size),
        (false, true) => d.copy_out_rows(request, (host_out(destination.0), destination.1), source, size),
        (false, false) => d.copy_any_rows(request, destination, source, size),
        (true, true) => d.copy_host_rows(destination, source, size),
    }
}

fn fill_2d(
    d: &mut Driver,
    request: Request,
    to: u64,
    pitch: usize,
    pattern: &[u8],
    size: (usize, usize),
) -> Result<()> {
    // A row that does not fit 64 bits is refused as too long where the fill starts.
    if size.1 > 1 && pitch < size.0.saturating_mul(pattern.len()) {
        let message = format!("a row of {} × {} bytes does not fit the pitch of {pitch} bytes", size.0, pattern.len());
        return Err(Fault::new(Code::InvalidValue, message));
    }
    d.fill_rows(request, (to, pitch), pattern, size)
}

/// A call on the null stream that the host waits for.
fn waiting(d: &mut Driver, symbol: &'static str, null: Null) -> Result<Request> {
    Ok(Request { call: public_name(symbol), stream: d.stream_for_work(0, null)?, wait: true })
}

fn queued(d: &mut Driver, symbol: &'static str, stream: Handle, null: Null) -> Result<Request> {
    Ok(Request { call: public_name(symbol), stream: d.stream_for_work(stream, null)?, wait: false })
}

fn put_value(value: Value, to: HostOut) -> Result<()> {
    let bytes: &[u8] = match &value {
        Value::Word(word) => &word.to_le_bytes(),
        Value::Int(int) => &int.to_le_bytes(),
        Value::Flag(flag) => &[u8::from(*flag)],
    };
    to.bytes(bytes.len(), "data")?.copy_from_slice(bytes);
    Ok(())
}

/// Whether a memory pool's attribute is of type int; the others have 64 bits.
fn is_int(attribute: u32) -> bool {
    attribute <= 3
}

c_api! {
    fn cuMemGetInfo_v2(free: Out<usize>, total: Out<usize>) |d| {
        d.current()?;
        let (left, all) = d.device.memory();
        free.put("free", left as usize)?;
        total.put("total", all as usize)
    }
    fn cuMemAlloc_v2(to: Out<u64>, bytes: usize) |d| {
        to.check("dptr")?;
        let address = d.alloc(bytes as u64)?;
        to.put("dptr", address)
    }
    fn cuMemAllocPitch_v2(to: Out<u64>, pitch: Out<usize>, width: usize, height: usize, _element: u32) |d| {
        let row = width.max(1).checked_next_multiple_of(512);
        let bytes = row.and_then(|row| row.checked_mul(height)).filter(|&bytes| bytes > 0 && width > 0);
        let bytes = bytes.ok_or_else(|| Fault::new(Code::InvalidValue, format!("{width} × {height} bytes")))?;
        to.check("dptr")?;
        pitch.check("pPitch")?;
        let address = d.alloc(bytes as u64)?;
        pitch.put("pPitch", bytes / height)?;
        to.put("dptr", address)
    }
    fn cuMemAllocManaged(to: Out<u64>, bytes: usize, flags: u32) |d| {
        if flags != 1 && flags != 2 {
            return Err(Fault::new(Code::InvalidValue, format!("managed memory flags {flags}: expected 1 or 2")));
        }
        to.check("dptr")?;
        let address = d.alloc_managed(bytes as u64)?;
        to.put("dptr", address)
    }
    fn cuMemFree_v2(address: u64) |d| { d.free(address) }
    fn cuMemGetAddressRange_v2(base: Out<u64>, bytes: Out<usize>, address: u64) |d| {
        d.current()?;
        let (start, size) = d.device.allocation(address)?;
        base.put_if_wanted(start);
        bytes.put_if_wanted(size as usize);
        Ok(())
    }
    fn cuMemHostAlloc(to: Out<u64>, bytes: usize, flags: u32) |d| {
        to.check("pp")?;
        let address = d.alloc_host(bytes as u64, flags)?;
        to.put("pp", address)
    }
    fn cuMemAllocHost_v2(to: Out<u64>, bytes: usize) |d| {
        to.check("pp")?;
        let address = d.alloc_host(bytes as u64, 0)?;
        to.put("pp", address)
    }
    fn cuMemFreeHost(address: u64) |d| {
        if address == 0 { Ok(()) } else { d.free_host(address, HostKind::Pinned) }
    }
    fn cuMemHostRegister_v2(memory: HostOut, bytes: usize, flags: u32) |d| {
        let block = HostBlock::register(d.owner()?, memory, bytes, flags)?;
        d.host.insert(block).map(|_| ())
    }
    fn cuMemHostUnregister(address: u64) |d| { d.free_host(address, HostKind::Registered) }
    fn cuMemHostGetDevicePointer_v2(to: Out<u64>, address: u64, _flags: u32) |d| {
        d.current()?;
        let address = d.map(address)?;
        to.put("pdptr", address)
    }
    fn cuMemHostGetFlags(flags: Out<u32>, address: u64) |d| {
        let block = d.host.holding(address).filter(|block| block.kind != HostKind::Managed);
        let block = block.ok_or_else(|| Fault::new(Code::InvalidValue, format!("{address:#x} is not pinned host memory")))?;
        flags.put("pFlags", block.flags)
    }
    fn cuMemAdvise(address: u64, _bytes: usize, _advice: u32, _device: i32) |d| {
        d.device.allocation(address).map(|_| ())
    }
    fn cuMemAdvise_v2(address: u64, _bytes: usize, _advice: u32, _location: Location) |d| {
        d.device.allocation(address).map(|_| ())
    }
    fn cuPointerGetAttribute(data: HostOut, attribute: u32, address: u64) |d| {
        put_value(d.pointer_attribute(attribute, address)?, data)
    }
    fn cuPointerGetAttributes(count: u32, attributes: In<u32>, data: In<HostOut>, address: u64) |d| {
        for i in 0..count as usize {
            // Unlike the call for one attribute, this one gives zeros for addresses that it does not know.
            let value = d.pointer_attribute(attributes.at(i, "attributes")?, address).unwrap_or(Value::Int(0));
            put_value(value, data.at(i, "data")?)?;
        }
        Ok(())
    }
    fn cuPointerSetAttribute(_value: HostIn, _attribute: u32, address: u64) |d| {
        d.device.allocation(address).map(|_| ())
    }
    fn cuMemPoolCreate(to: Out<Handle>, _properties: HostIn) |d| {
        to.check("pool")?;
        let pool = d.pools.insert(Pool::default());
        to.put("pool", pool)
    }
    fn cuMemPoolDestroy(pool: Handle) |d| { d.pool_destroy(pool) }
    fn cuMemPoolTrimTo(pool: Handle, keep: usize) |d| {
        d.pools.get_mut(pool)?.trim(keep as u64);
        Ok(())
    }
    fn cuMemPoolSetAttribute(pool: Handle, attribute: u32, value: HostIn) |d| {
        let bytes = value.bytes(if is_int(attribute) { 4 } else { 8 }, "value")?;
        let value = bytes.iter().rev().fold(0, |value, &byte| value << 8 | u64::from(byte));
        d.pools.get_mut(pool)?.set_attribute(attribute, value)
    }
    fn cuMemPoolGetAttribute(pool: Handle, attribute: u32, to: HostOut) |d| {
        let value = d.pools.get(pool)?.attribute(attribute)?;
        put_value(if is_int(attribute) { Value::Int(value as i32) } else { Value::Word(value) }, to)
    }
    twin cuMemcpyPeer, cuMemcpyPeer_ptds(
        to: u64, to_context: Handle, from: u64, from_context: Handle, bytes: usize,
    ) |d, null| {
        let request = waiting(d, "cuMemcpyPeer", null)?;
        d.copy_peer(request, (to, to_context), (from, from_context), bytes)
    }
    twin cuMemcpy2DUnaligned_v2, cuMemcpy2DUnaligned_v2_ptds(copy: In<Copy2D>) |d, null| { copy_2d(d, copy, 0, null, true) }
    twin cuMemsetD2D8_v2, cuMemsetD2D8_v2_ptds(to: u64, pitch: usize, value: u8, width: usize, height: usize) |d, null| {
        let request = waiting(d, "cuMemsetD2D8", null)?;
        fill_2d(d, request, to, pitch, &[value], (width, height))
    }
    twin cuMemsetD2D8Async, cuMemsetD2D8Async_ptsz(
        to: u64, pitch: usize, value: u8, width: usize, height: usize, stream: Handle,
    ) |d, null| {
        let request = queued(d, "cuMemsetD2D8Async", stream, null)?;
        fill_2d(d, request, to, pitch, &[value], (width, height))
    }
    twin cuMemsetD2D16_v2, cuMemsetD2D16_v2_ptds(to: u64, pitch: usize, value: u16, width: usize, height: usize) |d, null| {
        let request = waiting(d, "cuMemsetD2D16", null)?;
        fill_2d(d, request, to, pitch, &value.to_le_bytes(), (width, height))
    }
    twin cuMemsetD2D16Async, cuMemsetD2D16Async_ptsz(
        to: u64, pitch: usize, value: u16, width: usize, height: usize, stream: Handle,
    ) |d, null| {
        let request = queued(d, "cuMemsetD2D16Async", stream, null)?;
        fill_2d(d, request, to, pitch, &value.to_le_bytes(), (width, height))
    }
    twin cuMemsetD2D32_v2, cuMemsetD2D32_v2_ptds(to: u64, pitch: usize, value: u32, width: usize, height: usize) |d, null| {
        let request = waiting(d, "cuMemsetD2D32", null)?;
        fill_2d(d, request, to, pitch, &value.to_le_bytes(), (width, height))
    }
    twin cuMemsetD2D32Async, cuMemsetD2D32Async_ptsz(
        to: u64, pitch: usize, value: u32, width: usize, height: usize, stream: Handle,
    ) |d, null| {
        let request = queued(d, "cuMemsetD2D32Async", stream, null)?;
        fill_2d(d, request, to, pitch, &value.to_le_bytes(), (width, height))
    }
    twin cuMemcpy, cuMemcpy_ptds(to: u64, from: u64, bytes: usize) |d, null| {
        let request = waiting(d, "cuMemcpy", null)?;
        d.copy_any(request, to, from, bytes)
    }
    twin cuMemcpyHtoD_v2, cuMemcpyHtoD_v2_ptds(to: u64, from: HostIn, bytes: usize) |d, null| {
        let request = waiting(d, "cuMemcpyHtoD", null)?;
        d.copy_in(request, to, from, bytes)
    }
    twin cuMemcpyDtoH_v2, cuMemcpyDtoH_v2_ptds(to: HostOut, from: u64, bytes: usize) |d, null| {
        let request = waiting(d, "cuMemcpyDtoH", null)?;
        d.copy_out(request, to, from, bytes)
    }
    twin cuMemcpyDtoD_v2, cuMemcpyDtoD_v2_ptds(to: u64, from: u64, bytes: usize) |d, null| {
        let request = waiting(d, "cuMemcpyDtoD", null)?;
        d.copy_within(request, to, from, bytes)
    }
    twin cuMemcpy2D_v2, cuMemcpy2D_v2_ptds(copy: In<Copy2D>) |d, null| { copy_2d(d, copy, 0, null, true) }
    twin cuMemcpyAsync, cuMemcpyAsync_ptsz(to: u64, from: u64, bytes: usize, stream: Handle) |d, null| {
        let request = queued(d, "cuMemcpyAsync", stream, null)?;
        d.copy_any(request, to, from, bytes)
    }
    twin cuMemcpyHtoDAsync_v2, cuMemcpyHtoDAsync_v2_ptsz(to: u64, from: HostIn, bytes: usize, stream: Handle) |d, null| {
        let request = queued(d, "cuMemcpyHtoDAsync", stream, null)?;
        d.copy_in(request, to, from, bytes)
    }
    twin cuMemcpyDtoHAsync_v2, cuMemcpyDtoHAsync_v2_ptsz(to: HostOut, from: u64, bytes: usize, stream: Handle) |d, null| {
        let request = queued(d, "cuMemcpyDtoHAsync", stream, null)?;
        d.copy_out(request, to, from, bytes)
    }
    twin cuMemcpyDtoDAsync_v2, cuMemcpyDtoDAsync_v2_ptsz(to: u64, from: u64, bytes: usize, stream: Handle) |d, null| {
        let request = queued(d, "cuMemcpyDtoDAsync", stream, null)?;
        d.copy_within(request, to, from, bytes)
    }
    twin cuMemcpyPeerAsync, cuMemcpyPeerAsync_ptsz(
        to: u64, to_context: Handle, from: u64, from_context: Handle, bytes: usize, stream: Handle,
    ) |d, null| {
        let request = queued(d, "cuMemcpyPeerAsync", stream, null)?;
        d.copy_peer(request, (to, to_context), (from, from_context), bytes)
    }
    twin cuMemcpy2DAsync_v2, cuMemcpy2DAsync_v2_ptsz(copy: In<Copy2D>, stream: Handle) |d, null| {
        copy_2d(d, copy, stream, null, false)
    }
    twin cuMemsetD8_v2, cuMemsetD8_v2_ptds(to: u64, value: u8, count: usize) |d, null| {
        let request = waiting(d, "cuMemsetD8", null)?;
        d.fill(request, to, &[value], count)
    }
    twin cuMemsetD16_v2, cuMemsetD16_v2_ptds(to: u64, value: u16, count: usize) |d, null| {
        let request = waiting(d, "cuMemsetD16", null)?;
        d.fill(request, to, &value.to_le_bytes(), count)
    }
    twin cuMemsetD32_v2, cuMemsetD32_v2_ptds(to: u64, value: u32, count: usize) |d, null| {
        let request = waiting(d, "cuMemsetD32", null)?;
        d.fill(request, to, &value.to_le_bytes(), count)
    }
    twin cuMemsetD8Async, cuMemsetD8Async_ptsz(to: u64, value: u8, count: usize, stream: Handle) |d, null| {
        let request = queued(d, "cuMemsetD8Async", stream, null)?;
        d.fill(request, to, &[value], count)
    }
    twin cuMemsetD16Async, cuMemsetD16Async_ptsz(to: u64, value: u16, count: usize, stream: Handle) |d, null| {
        let request = queued(d, "cuMemsetD16Async", stream, null)?;
        d.fill(request, to, &value.to_le_bytes(), count)
    }
    twin cuMemsetD32Async, cuMemsetD32Async_ptsz(to: u64, value: u32, count: usize, stream: Handle) |d, null| {
        let request = queued(d, "cuMemsetD32Async", stream, null)?;
        d.fill(request, to, &value.to_le_bytes(), count)
    }
    twin cuMemAllocAsync, cuMemAllocAsync_ptsz(to: Out<u64>, bytes: usize, stream: Handle) |d, null| {
        let stream = d.stream_for_work(stream, null)?;
        to.check("dptr")?;
        let address = d.alloc_async(bytes as u64, d.current_pool, stream)?;
        to.put("dptr", address)
    }
    twin cuMemAllocFromPoolAsync, cuMemAllocFromPoolAsync_ptsz(to: Out<u64>, bytes: usize, pool: Handle, stream: Handle) |d, null| {
        d.pools.get(pool)?;
        let stream = d.stream_for_work(stream, null)?;
        to.check("dptr")?;
        let address = d.alloc_async(bytes as u64, pool, stream)?;
        to.put("dptr", address)
    }
    twin cuMemFreeAsync, cuMemFreeAsync_ptsz(address: u64, stream: Handle) |d, null| {
        let stream = d.stream_for_work(stream, null)?;
        d.free_async(address, stream)
    }
    twin cuMemPrefetchAsync, cuMemPrefetchAsync_ptsz(address: u64, _bytes: usize, _device: i32, stream: Handle) |d, null| {
        d.stream_for_work(stream, null)?;
        d.device.allocation(address).map(|_| ())
    }
    twin cuMemPrefetchAsync_v2, cuMemPrefetchAsync_v2_ptsz(
        address: u64, _bytes: usize, _location: Location, _flags: u32, stream: Handle,
    ) |d, null| {
        d.stream_for_work(stream, null)?;
        d.device.allocation(address).map(|_| ())
    }
}
