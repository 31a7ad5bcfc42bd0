//! Looking functions up by name (CUDA Driver API, "Driver Entry Point Access").

use super::{context, device, launch, memory, module, stream, unsupported};
use crate::driver::abi::{Out, Text};
use crate::driver::{error, failed};
use crate::fault::{Code, Fault, Result, shown};

/// `CU_GET_PROC_ADDRESS_LEGACY_STREAM`, `CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM`
const LEGACY: u64 = 1;
const PER_THREAD: u64 = 2;
/// `CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND`
const NOT_FOUND: u32 = 1;

const OWN: &[(&str, *const ())] = &[
    ("cuInit", device::cuInit as *const ()),
    ("cuDriverGetVersion", device::cuDriverGetVersion as *const ()),
    ("cuGetErrorString", device::cuGetErrorString as *const ()),
    ("cuGetErrorName", device::cuGetErrorName as *const ()),
    ("cuLaunchHostFunc", stream::cuLaunchHostFunc as *const ()),
    ("cuLaunchHostFunc_ptsz", stream::cuLaunchHostFunc_ptsz as *const ()),
    ("cuStreamAddCallback", stream::cuStreamAddCallback as *const ()),
    ("cuStreamAddCallback_ptsz", stream::cuStreamAddCallback_ptsz as *const ()),
    ("cuGetProcAddress", cuGetProcAddress as *const ()),
    ("cuGetProcAddress_v2", cuGetProcAddress_v2 as *const ()),
    ("cuGetProcAddress_v2_ptsz", cuGetProcAddress_v2_ptsz as *const ()),
    ("cuOccupancyMaxPotentialBlockSize", launch::cuOccupancyMaxPotentialBlockSize as *const ()),
    ("cuOccupancyMaxPotentialBlockSizeWithFlags", launch::cuOccupancyMaxPotentialBlockSizeWithFlags as *const ()),
];

/// Functions whose newer form takes other arguments, with the CUDA version from which the plain name means it.
const SINCE: &[(&str, i32)] = &[
    ("cuCtxCreate_v3", 11_040),
    ("cuCtxCreate_v4", 13_000),
    ("cuGetProcAddress_v2", 12_000),
    ("cuMemAdvise_v2", 13_000),
    ("cuMemPrefetchAsync_v2", 13_000),
];

fn lookup(symbol: &str) -> Option<*const ()> {
    let tables =
        [OWN, context::SYMBOLS, device::SYMBOLS, launch::SYMBOLS, memory::SYMBOLS, module::SYMBOLS, stream::SYMBOLS];
    let known = tables.into_iter().chain([unsupported::SYMBOLS]).flatten();
    known.into_iter().find(|entry| entry.0 == symbol).map(|entry| entry.1)
}

/// The newest form of a function that a CUDA version knows.
fn resolve(name: &str, version: i32, per_thread: bool) -> Option<*const ()> {
    for form in ["_v4", "_v3", "_v2", ""] {
        let symbol = format!("{name}{form}");
        if SINCE.iter().any(|&(newer, since)| newer == symbol && version < since) {
            continue;
        }
        let twins = ["_ptsz", "_ptds"].map(|twin| lookup(&format!("{symbol}{twin}")));
        let twin = twins.into_iter().flatten().next().filter(|_| per_thread);
        if let Some(function) = twin.or_else(|| lookup(&symbol)) {
            return Some(function);
        }
    }
    None
}

/// Without the lock. Programs ask for names to learn what a driver has: one that is not there is no finding.
fn get(name: Text, to: Out<*const ()>, version: i32, per_thread: bool, status: Option<Out<u32>>) -> u32 {
    let find = || -> Result<bool> {
        let name = name.get("symbol")?;
        to.check("pfn")?;
        let found = resolve(&name, version, per_thread);
        if let Some(status) = status {
            status.put_if_wanted(if found.is_some() { 0 } else { NOT_FOUND });
        }
        to.put("pfn", found.unwrap_or(std::ptr::null()))?;
        if found.is_none() {
            error::remember(&Fault::new(Code::NotFound, format!("{} is not emulated", shown(&name))));
        }
        Ok(found.is_some())
    };
    match find() {
        Ok(true) => 0,
        Ok(false) => Code::NotFound as u32,
        Err(fault) => failed("cuGetProcAddress", &fault, true),
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn cuGetProcAddress(name: Text, to: Out<*const ()>, version: i32, flags: u64) -> u32 {
    get(name, to, version, flags & PER_THREAD != 0, None)
}

#[unsafe(no_mangle)]
pub extern "C" fn cuGetProcAddress_v2(
    name: Text,
    to: Out<*const ()>,
    version: i32,
    flags: u64,
    status: Out<u32>,
) -> u32 {
    get(name, to, version, flags & PER_THREAD != 0, Some(status))
}

/// For programs compiled for per-thread default streams.
#[unsafe(no_mangle)]
pub extern "C" fn cuGetProcAddress_v2_ptsz(
    name: Text,
    to: Out<*const ()>,
    version: i32,
    flags: u64,
    status: Out<u32>,
) -> u32 {
    get(name, to, version, flags & LEGACY == 0, Some(status))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_resolve_by_version() {
        assert_eq!(resolve("cuMemAlloc", 13_000, false), Some(memory::cuMemAlloc_v2 as *const ()));
        assert_eq!(resolve("cuCtxCreate", 11_000, false), Some(context::cuCtxCreate_v2 as *const ()));
        assert_eq!(resolve("cuCtxCreate", 12_000, false), Some(context::cuCtxCreate_v3 as *const ()));
        assert_eq!(resolve("cuCtxCreate", 13_000, false), Some(context::cuCtxCreate_v4 as *const ()));
        assert_eq!(resolve("cuMemcpyHtoD", 13_000, true), Some(memory::cuMemcpyHtoD_v2_ptds as *const ()));
        assert_eq!(resolve("cuInit", 13_000, true), Some(device::cuInit as *const ()));
        assert_eq!(resolve("cuNothing", 13_000, false), None);
        let twin = Some(memory::cuMemsetD2D8Async_ptsz as *const ());
        assert_eq!(resolve("cuMemsetD2D8Async", 13_000, true), twin);
        for symbol in ["cuGetProcAddress_v2_ptsz", "cuMemcpyPeer_ptds", "cuGraphLaunch_ptsz", "cuMemcpy3D_v2_ptds"] {
            assert!(lookup(symbol).is_some(), "{symbol}");
        }
    }
}
