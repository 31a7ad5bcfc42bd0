//! Modules, libraries, functions (CUDA Driver API, "Module Management", "Library Management", "Execution Control").

use std::ffi::c_char;

use super::c_api;
use crate::driver::abi::{Handle, HostIn, HostOut, In, Out, Text};
use crate::driver::error;
use crate::fault::{Code, Fault, Result};

/// `CU_JIT_ERROR_LOG_BUFFER` and its size; the other options change nothing here.
const ERROR_LOG: u32 = 5;
const ERROR_LOG_BYTES: u32 = 6;

/// Writes a diagnosis to the error log that a program may have given.
fn log(fault: &Fault, count: u32, options: In<u32>, values: In<HostOut>) -> Result<()> {
    let (mut log, mut room) = (None, 0);
    for i in 0..count as usize {
        match options.at(i, "options")? {
            ERROR_LOG => log = Some(values.at(i, "optionValues")?),
            ERROR_LOG_BYTES => room = values.at(i, "optionValues")?.address(),
            _ => {}
        }
    }
    if let Some(log) = log.filter(|_| room > 0) {
        let text = &fault.message.as_bytes()[..fault.message.len().min(room - 1)];
        let log = log.bytes(text.len() + 1, "the error log")?;
        log[..text.len()].copy_from_slice(text);
        log[text.len()] = 0;
    }
    Ok(())
}

c_api! {
    fn cuModuleLoad(to: Out<Handle>, path: Text) |d| {
        let ptx = d.ptx_of_file(&path.get("fname")?)?;
        to.check("module")?;
        let module = d.module_load(&ptx)?;
        to.put("module", module)
    }
    fn cuModuleLoadData(to: Out<Handle>, image: HostIn) |d| {
        let ptx = d.ptx_of_image(image)?;
        to.check("module")?;
        let module = d.module_load(&ptx)?;
        to.put("module", module)
    }
    fn cuModuleLoadDataEx(to: Out<Handle>, image: HostIn, count: u32, options: In<u32>, values: In<HostOut>) |d| {
        to.check("module")?;
        to.check("module")?;
        match d.ptx_of_image(image).and_then(|ptx| d.module_load(&ptx)) {
            Ok(module) => to.put("module", module),
            Err(fault) => {
                log(&fault, count, options, values)?;
                Err(fault)
            }
        }
    }
    fn cuModuleLoadFatBinary(to: Out<Handle>, fatbin: HostIn) |d| {
        let ptx = d.ptx_of_image(fatbin)?;
        to.check("module")?;
        let module = d.module_load(&ptx)?;
        to.put("module", module)
    }
    fn cuModuleUnload(module: Handle) |d| { d.module_unload(module) }
    fn cuModuleGetLoadingMode(mode: Out<u32>) |_d| { mode.put("mode", 1) }
    fn cuModuleGetFunction(to: Out<Handle>, module: Handle, name: Text) |d| {
        let function = d.module_function(module, &name.get("name")?)?;
        to.put("hfunc", function)
    }
    fn cuModuleGetFunctionCount(count: Out<u32>, module: Handle) |d| {
        count.put("count", d.modules.get(module)?.module.kernels.len() as u32)
    }
    fn cuModuleEnumerateFunctions(to: Out<Handle>, count: u32, module: Handle) |d| {
        let kernels = &d.modules.get(module)?.module.kernels;
        let names: Vec<_> = kernels.iter().take(count as usize).map(|kernel| kernel.name.clone()).collect();
        let functions = names.iter().map(|name| d.module_function(module, name)).collect::<Result<Vec<_>>>()?;
        to.put_all("functions", functions)
    }
    fn cuModuleGetGlobal_v2(address: Out<u64>, bytes: Out<usize>, module: Handle, name: Text) |d| {
        let (start, size) = d.module_global(module, &name.get("name")?)?;
        address.put_if_wanted(start);
        bytes.put_if_wanted(size as usize);
        Ok(())
    }
    fn cuLibraryLoadData(
        to: Out<Handle>, image: HostIn, _jit: HostIn, _jit_values: HostIn, _jit_count: u32,
        _options: HostIn, _values: HostIn, _count: u32,
    ) |d| {
        let ptx = d.ptx_of_image(image)?;
        to.check("library")?;
        let library = d.library_load(ptx)?;
        to.put("library", library)
    }
    fn cuLibraryLoadFromFile(
        to: Out<Handle>, path: Text, _jit: HostIn, _jit_values: HostIn, _jit_count: u32,
        _options: HostIn, _values: HostIn, _count: u32,
    ) |d| {
        let ptx = d.ptx_of_file(&path.get("fileName")?)?;
        to.check("library")?;
        let library = d.library_load(ptx)?;
        to.put("library", library)
    }
    fn cuLibraryUnload(library: Handle) |d| { d.library_unload(library) }
    fn cuLibraryGetModule(to: Out<Handle>, library: Handle) |d| {
        let module = d.library_module(library)?;
        to.put("pMod", module)
    }
    fn cuLibraryGetKernel(to: Out<Handle>, library: Handle, name: Text) |d| {
        let kernel = d.library_kernel(library, &name.get("name")?)?;
        to.put("pKernel", kernel)
    }
    fn cuLibraryGetKernelCount(count: Out<u32>, library: Handle) |d| {
        let module = d.library_module(library)?;
        count.put("count", d.modules.get(module)?.module.kernels.len() as u32)
    }
    fn cuLibraryGetGlobal(address: Out<u64>, bytes: Out<usize>, library: Handle, name: Text) |d| {
        let module = d.library_module(library)?;
        let (start, size) = d.module_global(module, &name.get("name")?)?;
        address.put_if_wanted(start);
        bytes.put_if_wanted(size as usize);
        Ok(())
    }
    fn cuKernelGetFunction(to: Out<Handle>, kernel: Handle) |d| {
        d.kernels.get(kernel)?;
        let function = d.function(kernel)?;
        to.put("pFunc", function)
    }
    fn cuKernelGetLibrary(to: Out<Handle>, kernel: Handle) |d| { to.put("pLib", d.kernels.get(kernel)?.library) }
    fn cuKernelGetName(to: Out<*const c_char>, kernel: Handle) |d| {
        to.put("name", error::keep(&d.kernels.get(kernel)?.name).as_ptr())
    }
    fn cuKernelGetAttribute(value: Out<i32>, attribute: i32, kernel: Handle, device: i32) |d| {
        d.check_device(device)?;
        let found = d.function_attribute(kernel, attribute)?;
        value.put("pi", found)
    }
    fn cuKernelSetAttribute(attribute: i32, value: i32, kernel: Handle, device: i32) |d| {
        d.check_device(device)?;
        d.set_function_attribute(kernel, attribute, value)
    }
    fn cuKernelSetCacheConfig(kernel: Handle, _config: u32, device: i32) |d| {
        d.check_device(device)?;
        d.kernels.get(kernel).map(|_| ())
    }
    fn cuFuncGetAttribute(value: Out<i32>, attribute: i32, function: Handle) |d| {
        let found = d.function_attribute(function, attribute)?;
        value.put("pi", found)
    }
    fn cuFuncSetAttribute(function: Handle, attribute: i32, value: i32) |d| {
        d.set_function_attribute(function, attribute, value)
    }
    fn cuFuncSetCacheConfig(function: Handle, _config: u32) |d| { d.function(function).map(|_| ()) }
    fn cuFuncSetSharedMemConfig(function: Handle, _config: u32) |d| { d.function(function).map(|_| ()) }
    fn cuFuncGetModule(to: Out<Handle>, function: Handle) |d| {
        let function = d.function(function)?;
        to.put("hmod", d.functions.get(function)?.module)
    }
    fn cuFuncGetName(to: Out<*const c_char>, function: Handle) |d| {
        let function = d.function(function)?;
        to.put("name", error::keep(&d.functions.get(function)?.program.name).as_ptr())
    }
    fn cuFuncGetParamInfo(function: Handle, index: usize, offset: Out<usize>, bytes: Out<usize>) |d| {
        let function = d.function(function)?;
        let program = &d.functions.get(function)?.program;
        let slot = program.params.get(index).ok_or_else(|| {
            let message = format!("kernel {} has {} parameters, none number {index}", program.name, program.params.len());
            Fault::new(Code::InvalidValue, message)
        })?;
        offset.put("paramOffset", slot.offset as usize)?;
        bytes.put_if_wanted(slot.bytes as usize);
        Ok(())
    }
    fn cuFuncGetParamCount(function: Handle, count: Out<usize>) |d| {
        let function = d.function(function)?;
        count.put("paramCount", d.functions.get(function)?.program.params.len())
    }
    fn cuFuncIsLoaded(state: Out<u32>, function: Handle) |d| {
        d.function(function)?;
        state.put("state", 1)
    }
    fn cuFuncLoad(function: Handle) |d| { d.function(function).map(|_| ()) }
}
