//! Initialisation, errors and the device (CUDA Driver API, "Initialization", "Error Handling", "Device Management").

use std::ffi::c_char;
use std::sync::atomic::Ordering;

use super::c_api;
use crate::driver::abi::{self, Handle, In, Out, Text};
use crate::driver::state::Driver;
use crate::driver::{PROCESS, attributes, error, locked};
use crate::fault::{Code, Fault, Result, shown};

/// CUDA 13.0: the version of the interface that this library follows.
const VERSION: i32 = 13_000;
const PCI_BUS_ID: &str = "0000:01:00.0";

extern "C" fn write_report() {
    // A forked child would write over its parent's report.
    if crate::driver::is_forked() {
        return;
    }
    // Whoever holds the lock at the end of the process is stuck; then the last report stays.
    if let Ok(mut slot) = crate::driver::DRIVER.try_lock()
        && let Some(driver) = slot.as_mut()
    {
        driver.report.write_last();
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn cuInit(flags: u32) -> u32 {
    locked("cuInit", |slot| {
        if flags != 0 {
            return Err(Fault::new(Code::InvalidValue, format!("cuInit flags {flags}: expected 0")));
        }
        if slot.is_none() {
            *slot = Some(Driver::from_environment()?);
            PROCESS.store(std::process::id(), Ordering::Relaxed);
            abi::at_exit(write_report);
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDriverGetVersion(version: Out<i32>) -> u32 {
    locked("cuDriverGetVersion", |_| version.put("driverVersion", VERSION))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuGetErrorString(code: u32, text: Out<*const c_char>) -> u32 {
    answer(error::string(code).map(|text| text.as_ptr()), text)
}

#[unsafe(no_mangle)]
pub extern "C" fn cuGetErrorName(code: u32, text: Out<*const c_char>) -> u32 {
    answer(error::name(code).map(|name| error::keep(name).as_ptr()), text)
}

/// Without the lock and without a diagnosis of its own: programs call this to learn of another error.
fn answer(found: Option<*const c_char>, text: Out<*const c_char>) -> u32 {
    match found {
        Some(found) => text.put("pStr", found).map_or(Code::InvalidValue as u32, |()| 0),
        None => {
            text.put_if_wanted(std::ptr::null());
            Code::InvalidValue as u32
        }
    }
}

/// Not part of CUDA: the report of the launches so far, as JSON where `json` is not 0, else as a table. `needed` gets the
/// bytes with the final NUL; `text` may be null to learn them.
#[unsafe(no_mangle)]
pub extern "C" fn cuEmulatorReport(text: Out<u8>, room: usize, needed: Out<usize>, json: u32) -> u32 {
    crate::driver::call("cuEmulatorReport", |d| {
        let report = d.report.text(json != 0);
        needed.put_if_wanted(report.len() + 1);
        if text.is_null() {
            return Ok(());
        }
        put_text(text, i32::try_from(room).unwrap_or(i32::MAX), &report)
    })
}

fn put_text(to: Out<u8>, room: i32, text: &str) -> Result<()> {
    let room = usize::try_from(room).ok().filter(|&room| room > 0);
    let room = room.ok_or_else(|| Fault::new(Code::InvalidValue, "no room for the text and its final NUL"))?;
    to.put_all("the text", text.bytes().take(room - 1).chain([0]))
}

c_api! {
    fn cuDeviceGet(device: Out<i32>, ordinal: i32) |d| {
        d.check_device(ordinal)?;
        device.put("device", ordinal)
    }
    fn cuDeviceGetCount(count: Out<i32>) |_d| { count.put("count", 1) }
    fn cuDeviceGetName(name: Out<u8>, room: i32, device: i32) |d| {
        d.check_device(device)?;
        put_text(name, room, d.device.card.name)
    }
    fn cuDeviceGetUuid(uuid: Out<u8>, device: i32) |d| {
        d.check_device(device)?;
        uuid.put_all("uuid", *b"cuda-emulator-00")
    }
    fn cuDeviceGetUuid_v2(uuid: Out<u8>, device: i32) |d| {
        d.check_device(device)?;
        uuid.put_all("uuid", *b"cuda-emulator-00")
    }
    fn cuDeviceGetAttribute(value: Out<i32>, attribute: i32, device: i32) |d| {
        d.check_device(device)?;
        value.put("pi", attributes::device(&d.device.card, attribute)?)
    }
    fn cuDeviceTotalMem_v2(bytes: Out<usize>, device: i32) |d| {
        d.check_device(device)?;
        bytes.put("bytes", d.device.memory().1 as usize)
    }
    fn cuDeviceComputeCapability(major: Out<i32>, minor: Out<i32>, device: i32) |d| {
        d.check_device(device)?;
        let (x, y) = d.device.card.compute_capability;
        major.put("major", x as i32)?;
        minor.put("minor", y as i32)
    }
    fn cuDeviceGetPCIBusId(id: Out<u8>, room: i32, device: i32) |d| {
        d.check_device(device)?;
        put_text(id, room, PCI_BUS_ID)
    }
    fn cuDeviceGetByPCIBusId(device: Out<i32>, id: Text) |_d| {
        let id = id.get("pciBusId")?;
        if !PCI_BUS_ID.ends_with(id.trim_start_matches("0000:")) || id.is_empty() {
            return Err(Fault::new(Code::InvalidDevice, format!("no device at {}: the emulated one is at {PCI_BUS_ID}", shown(&id))));
        }
        device.put("dev", 0)
    }
    fn cuDeviceCanAccessPeer(can: Out<i32>, device: i32, peer: i32) |d| {
        d.check_device(device)?;
        d.check_device(peer)?;
        can.put("canAccessPeer", 0)
    }
    fn cuDevicePrimaryCtxRetain(context: Out<Handle>, device: i32) |d| {
        context.check("pctx")?;
        d.check_device(device)?;
        let handle = d.primary_retain()?;
        context.put("pctx", handle)
    }
    fn cuDevicePrimaryCtxRelease_v2(device: i32) |d| {
        d.check_device(device)?;
        d.primary_release()
    }
    fn cuDevicePrimaryCtxReset_v2(device: i32) |d| {
        d.check_device(device)?;
        d.primary_reset()
    }
    fn cuDevicePrimaryCtxSetFlags_v2(device: i32, flags: u32) |d| {
        d.check_device(device)?;
        d.primary.flags = flags;
        Ok(())
    }
    fn cuDevicePrimaryCtxGetState(device: i32, flags: Out<u32>, active: Out<i32>) |d| {
        d.check_device(device)?;
        flags.put("flags", d.primary.flags)?;
        active.put("active", i32::from(d.primary.context.is_some()))
    }
    fn cuDeviceGetDefaultMemPool(pool: Out<Handle>, device: i32) |d| {
        d.check_device(device)?;
        pool.put("pool_out", d.default_pool)
    }
    fn cuDeviceGetMemPool(pool: Out<Handle>, device: i32) |d| {
        d.check_device(device)?;
        pool.put("pool", d.current_pool)
    }
    fn cuDeviceSetMemPool(device: i32, pool: Handle) |d| {
        d.check_device(device)?;
        d.pools.get(pool)?;
        d.current_pool = pool;
        Ok(())
    }
    fn cuProfilerStart() |_d| { Ok(()) }
    fn cuProfilerStop() |_d| { Ok(()) }
    fn cuGetExportTable(table: Out<usize>, id: In<[u8; 16]>) |_d| {
        table.put_if_wanted(0);
        let id = id.get("pExportTableId")?;
        let id: String = id.iter().map(|byte| format!("{byte:02x}")).collect();
        let message = format!("private interface {id} is not emulated: programs of the CUDA runtime (cudart) can't run, only driver ones");
        Err(Fault::new(Code::NotFound, message))
    }
}
