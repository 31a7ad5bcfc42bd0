//! Contexts (CUDA Driver API, "Context Management").

use super::c_api;
use crate::driver::abi::{Handle, HostIn, Out};
use crate::driver::{context, stream};
use crate::fault::{Code, Fault, Result};

fn refuse(params: HostIn, what: &str) -> Result<()> {
    if params.is_null() { Ok(()) } else { Err(Fault::new(Code::NotSupported, format!("{what} is not emulated"))) }
}

c_api! {
    fn cuCtxCreate_v2(to: Out<Handle>, flags: u32, device: i32) |d| {
        d.check_device(device)?;
        to.check("pctx")?;
        let context = d.context_create(flags)?;
        to.put("pctx", context)
    }
    fn cuCtxCreate_v3(to: Out<Handle>, affinity: HostIn, _count: i32, flags: u32, device: i32) |d| {
        d.check_device(device)?;
        refuse(affinity, "execution affinity")?;
        to.check("pctx")?;
        let context = d.context_create(flags)?;
        to.put("pctx", context)
    }
    fn cuCtxCreate_v4(to: Out<Handle>, params: HostIn, flags: u32, device: i32) |d| {
        d.check_device(device)?;
        // CUctxCreateParams: affinity (pointer and count), then the pointer to graphics parameters.
        if !params.is_null() && params.bytes(24, "ctxCreateParams")?.iter().any(|&byte| byte != 0) {
            refuse(params, "a context with parameters")?;
        }
        to.check("pctx")?;
        let context = d.context_create(flags)?;
        to.put("pctx", context)
    }
    fn cuCtxDestroy_v2(handle: Handle) |d| { d.context_destroy(handle) }
    fn cuCtxSetCurrent(handle: Handle) |d| {
        if handle != 0 {
            d.contexts.get(handle)?;
        }
        context::set_top(handle);
        Ok(())
    }
    fn cuCtxGetCurrent(to: Out<Handle>) |_d| { to.put("pctx", context::top()) }
    fn cuCtxPushCurrent_v2(handle: Handle) |d| {
        d.contexts.get(handle)?;
        context::push(handle);
        Ok(())
    }
    fn cuCtxPopCurrent_v2(to: Out<Handle>) |_d| {
        let popped = context::pop();
        to.put_if_wanted(popped.unwrap_or(0));
        popped.map(|_| ()).ok_or_else(|| Fault::new(Code::InvalidContext, "no context is current on this thread"))
    }
    fn cuCtxGetDevice(device: Out<i32>) |d| {
        d.current()?;
        device.put("device", 0)
    }
    fn cuCtxSynchronize() |d| { d.context_synchronize(d.current()?) }
    fn cuCtxSetLimit(limit: u32, value: usize) |d| { d.set_limit(limit, value) }
    fn cuCtxGetLimit(value: Out<usize>, limit: u32) |d| { value.put("pvalue", d.limit(limit)?) }
    fn cuCtxGetApiVersion(handle: Handle, version: Out<u32>) |d| {
        d.contexts.get(if handle == 0 { d.current()? } else { handle })?;
        version.put("version", 3020)
    }
    fn cuCtxGetId(handle: Handle, id: Out<u64>) |d| {
        let context = d.contexts.get(if handle == 0 { d.current()? } else { handle })?;
        id.put("ctxId", u64::from(context.owner))
    }
    fn cuCtxGetStreamPriorityRange(least: Out<i32>, greatest: Out<i32>) |d| {
        d.current()?;
        least.put_if_wanted(stream::LOWEST_PRIORITY);
        greatest.put_if_wanted(stream::HIGHEST_PRIORITY);
        Ok(())
    }
    fn cuCtxSetFlags(flags: u32) |d| {
        let context = d.current()?;
        d.contexts.get_mut(context)?.flags = flags;
        Ok(())
    }
    fn cuCtxGetFlags(flags: Out<u32>) |d| { flags.put("flags", d.contexts.get(d.current()?)?.flags) }
    fn cuCtxSetCacheConfig(config: u32) |d| {
        let context = d.current()?;
        d.contexts.get_mut(context)?.cache_config = config;
        Ok(())
    }
    fn cuCtxGetCacheConfig(config: Out<u32>) |d| { config.put("pconfig", d.contexts.get(d.current()?)?.cache_config) }
    fn cuCtxSetSharedMemConfig(_config: u32) |d| { d.current().map(|_| ()) }
    fn cuCtxGetSharedMemConfig(config: Out<u32>) |d| {
        d.current()?;
        config.put("pConfig", 0)
    }
    fn cuCtxResetPersistingL2Cache() |d| { d.current().map(|_| ()) }
}
