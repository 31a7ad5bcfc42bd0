//! A device: its stream, its memory pool, the kernels loaded so far.
//!
//! All work goes to one stream, in order. Memory comes from the stream-ordered pool, which keeps what is freed. cudarc's
//! event tracking orders several streams; with one it is switched off, before the first allocation.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::{env, fs};

use anyhow::{Context, Result as AnyResult, bail};
use cudarc::driver::sys::{self, CUdevice_attribute as Attribute};
use cudarc::driver::{CudaContext, CudaModule, CudaStream, result};
use cudarc::nvrtc::Ptx;

use super::error::driver_message;
use super::memory::Buffer;
use super::modules::{COMPILED, Function};
use super::occupancy::Multiprocessor;
use super::{LaunchError, Result, emulator};
use crate::dtype::Element;

/// The variable that names a folder: `DIR/FILE.ptx` there replaces the compiled `kernels/FILE.cu`, so that a changed kernel is
/// tried without building the program anew.
pub const KERNELS_VARIABLE: &str = "HANDGRAD_KERNELS";

/// What a card allows.
#[derive(Clone, Debug)]
pub struct Limits {
    pub multiprocessors: u32,
    /// Bytes of shared memory that a block gets unasked.
    pub shared_memory: usize,
    /// Bytes of shared memory that a block gets if the kernel opts in.
    pub shared_memory_optin: usize,
    /// Blocks along x, y and z.
    pub grid: [u32; 3],
    /// Compute capability × 10.
    pub capability: u32,
    pub multiprocessor: Multiprocessor,
}

/// An open device.
pub struct Gpu {
    context: Arc<CudaContext>,
    stream: Arc<CudaStream>,
    limits: Limits,
    name: String,
    modules: Mutex<HashMap<&'static str, Arc<CudaModule>>>,
    functions: Mutex<HashMap<String, Arc<Function>>>,
}

impl Gpu {
    /// The emulated card (`HANDGRAD_EMULATOR_CARD` picks which). Error: the emulator's library is not there.
    pub fn emulator() -> AnyResult<Gpu> {
        emulator::load()?;
        Gpu::open(0)
    }

    /// Card number `ordinal`. Errors say what is missing: the driver, a card, this card, kernels for it.
    pub fn open(ordinal: usize) -> AnyResult<Gpu> {
        // SAFETY: looks for the driver's library and loads it.
        if !unsafe { sys::is_culib_present() } {
            bail!("cuda: found no NVIDIA driver (libcuda.so.1), expected one: install it, or use --device emulator");
        }
        let devices = devices()?;
        if ordinal >= devices.len() {
            bail!("cuda:{ordinal}: found {} card(s), expected one of {}", devices.len(), devices.join(", "));
        }
        let open = || -> std::result::Result<Gpu, cudarc::driver::DriverError> {
            let context = CudaContext::new(ordinal)?;
            // SAFETY: there is one stream, so nothing has to be ordered by events.
            unsafe { context.disable_event_tracking() };
            keep_freed_memory(&context)?;
            let limits = Limits::of(&context)?;
            let (stream, name) = (context.new_stream()?, context.name()?);
            Ok(Gpu { context, stream, limits, name, modules: Mutex::default(), functions: Mutex::default() })
        };
        let gpu = open().map_err(|error| anyhow::anyhow!("cuda:{ordinal}: {}", driver_message(error)))?;
        gpu.check_kernels()?;
        Ok(gpu)
    }

    /// That the compiled kernels run here: found now and not at the first launch.
    fn check_kernels(&self) -> AnyResult<()> {
        let Some(file) = COMPILED.files.iter().find(|file| file.name == "scale") else {
            bail!("no kernels were compiled")
        };
        self.module(file.name).map(|_| ()).with_context(|| {
            let mut version = 0;
            // SAFETY: writes one number.
            let _ = unsafe { sys::cuDriverGetVersion(&mut version) };
            format!(
                "{}: found compute capability {}.{} and a driver for CUDA {}.{}, expected kernels compiled for it ({:?}, by nvcc {}): build again with CUDA_COMPUTE_CAP={}, or update the driver",
                self.name,
                self.limits.capability / 10,
                self.limits.capability % 10,
                version / 1000,
                version % 1000 / 10,
                COMPILED.capabilities,
                COMPILED.release,
                self.limits.capability
            )
        })
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn is_emulated(&self) -> bool {
        self.name.ends_with("(emulated)")
    }

    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    pub(super) fn stream(&self) -> &Arc<CudaStream> {
        &self.stream
    }

    /// `len` elements of unknown value. Error: out of memory.
    pub fn alloc<E: Element>(&self, len: usize) -> Result<Buffer<E>> {
        Buffer::new(&self.stream, len)
    }

    pub fn zeros<E: Element>(&self, len: usize) -> Result<Buffer<E>> {
        let mut buffer = self.alloc(len)?;
        buffer.clear()?;
        Ok(buffer)
    }

    pub fn upload<E: Element>(&self, data: &[E]) -> Result<Buffer<E>> {
        let mut buffer = self.alloc(data.len())?;
        buffer.write(data)?;
        Ok(buffer)
    }

    /// Waits for all work submitted so far. Error: what went wrong in it.
    pub fn synchronize(&self) -> Result<()> {
        self.stream.synchronize().map_err(LaunchError::driver("synchronize"))
    }

    /// Free and total bytes of the card.
    pub fn memory(&self) -> Result<(usize, usize)> {
        self.context.mem_get_info().map_err(LaunchError::driver("memory"))
    }

    /// What the emulator counted in this process so far; none on a card.
    pub fn emulator_report(&self) -> Option<serde_json::Value> {
        if self.is_emulated() { emulator::report() } else { None }
    }

    pub(super) fn function(&self, file: &'static str, name: &str) -> Result<Arc<Function>> {
        let key = format!("{file}:{name}");
        let mut functions = self.functions.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(function) = functions.get(&key) {
            return Ok(function.clone());
        }
        let module = self.module(file)?;
        let unknown = |_| LaunchError::Unknown { file, kernel: name.to_string() };
        let function = Arc::new(Function::new(name, module.load_function(name).map_err(unknown)?, &self.limits)?);
        functions.insert(key, function.clone());
        Ok(function)
    }

    fn module(&self, name: &'static str) -> Result<Arc<CudaModule>> {
        let mut modules = self.modules.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(module) = modules.get(name) {
            return Ok(module.clone());
        }
        let file = COMPILED.files.iter().find(|file| file.name == name);
        let file = file.ok_or_else(|| LaunchError::Unknown { file: name, kernel: name.to_string() })?;
        let replaced = env::var_os(KERNELS_VARIABLE).map(|folder| PathBuf::from(folder).join(format!("{name}.ptx")));
        let image = match replaced.and_then(|path| fs::read_to_string(path).ok()) {
            Some(ptx) => Ptx::from_src(ptx),
            None if self.is_emulated() => Ptx::from_src(file.ptx),
            None => Ptx::from_binary(file.cubins.to_vec()),
        };
        let load = |image| self.context.load_module(image);
        let module = match load(image) {
            // A card newer than the list: its driver compiles the PTX.
            Err(error) if error.0 == sys::CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU => load(Ptx::from_src(file.ptx)),
            loaded => loaded,
        };
        let module = module.map_err(LaunchError::driver(format!("kernels/{name}.cu")))?;
        modules.insert(name, module.clone());
        Ok(module)
    }
}

impl Limits {
    fn of(context: &CudaContext) -> std::result::Result<Limits, cudarc::driver::DriverError> {
        let get = |attribute| context.attribute(attribute);
        let (major, minor) = context.compute_capability()?;
        Ok(Limits {
            multiprocessors: get(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)? as u32,
            shared_memory: get(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK)? as usize,
            shared_memory_optin: get(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)? as usize,
            grid: [
                get(Attribute::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X)? as u32,
                get(Attribute::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y)? as u32,
                get(Attribute::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z)? as u32,
            ],
            capability: (major * 10 + minor) as u32,
            multiprocessor: Multiprocessor::of(context)?,
        })
    }
}

/// The cards' numbers and names. Error: what the driver says when it starts, such as that there is none.
fn devices() -> AnyResult<Vec<String>> {
    let list = || {
        result::init()?;
        let count = result::device::get_count()?;
        (0..count).map(|i| Ok(format!("cuda:{i} ({})", result::device::get_name(result::device::get(i)?)?))).collect()
    };
    let list: std::result::Result<Vec<String>, cudarc::driver::DriverError> = list();
    let devices =
        list.map_err(|error| anyhow::anyhow!("cuda: the driver does not start: {}", driver_message(error)))?;
    if devices.is_empty() {
        bail!("cuda: found a driver but no card, expected one (is CUDA_VISIBLE_DEVICES empty?)");
    }
    Ok(devices)
}

/// Freed memory stays in the pool instead of going back to the system at each wait.
fn keep_freed_memory(context: &CudaContext) -> std::result::Result<(), cudarc::driver::DriverError> {
    if !context.has_async_alloc() {
        return Ok(());
    }
    let mut all = u64::MAX;
    let attribute = sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
    // SAFETY: the pool is the device's own, and the attribute is a 64-bit number.
    unsafe {
        let pool = result::device::get_default_mem_pool(context.cu_device())?;
        sys::cuMemPoolSetAttribute(pool, attribute, (&raw mut all).cast()).result()
    }
}
