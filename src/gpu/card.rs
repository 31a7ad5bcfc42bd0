//! A device: its stream, its memory pool, the kernels loaded so far.
//!
//! All work goes to one stream, in order; copies from the host go to a second one, which the first waits for. Memory comes
//! from the stream-ordered pool, which keeps what is freed. cudarc's own event tracking is switched off, before the first
//! allocation.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::{env, fmt, fs};

use anyhow::{Context, Result as AnyResult, bail};
use cudarc::driver::sys::{self, CUdevice_attribute as Attribute};
use cudarc::driver::{CudaContext, CudaModule, CudaStream, DriverError, LaunchConfig, PushKernelArg, result};
use cudarc::nvrtc::Ptx;

use super::modules::{COMPILED, Function, compiled};
use super::{Entry, Grid, LaunchError, Limits, Multiprocessor, PoolUse, Result, Value, emulator};

/// The variable that names a folder: `DIR/FILE.ptx` there replaces the compiled `kernels/FILE.cu`, so that a changed kernel is
/// tried without building the program anew.
pub const KERNELS_VARIABLE: &str = "HANDGRAD_KERNELS";

/// The compute capability × 10 from which on there are asynchronous copies and products in bf16.
const LEAST_CAPABILITY: u32 = 80;

/// An open device. Cloning copies a pointer.
#[derive(Clone)]
pub struct Gpu(Arc<State>);

/// The devices that are open, by number.
static OPENED: Mutex<Vec<(usize, Weak<State>)>> = Mutex::new(Vec::new());

struct State {
    context: Arc<CudaContext>,
    stream: Arc<CudaStream>,
    /// What carries data to the device beside the work.
    copies: Arc<CudaStream>,
    limits: Limits,
    name: String,
    modules: Mutex<HashMap<&'static str, Arc<CudaModule>>>,
    functions: Mutex<HashMap<&'static str, Arc<Function>>>,
    /// How often the host waited for the device.
    waits: AtomicUsize,
}

impl PartialEq for Gpu {
    fn eq(&self, other: &Gpu) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl fmt::Debug for Gpu {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(self.name())
    }
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
            bail!(
                "cuda: found no NVIDIA driver (libcuda.so.1), expected one: install it, or use --device emulator or cpu"
            );
        }
        let devices = devices()?;
        if ordinal >= devices.len() {
            bail!("cuda:{ordinal}: found {} card(s), expected one of {}", devices.len(), devices.join(", "));
        }
        // One device is one stream and one pool: whoever opens it again shares it.
        let mut opened = OPENED.lock().unwrap_or_else(PoisonError::into_inner);
        opened.retain(|(_, state)| state.strong_count() > 0);
        let state = opened.iter().find(|(known, _)| *known == ordinal).and_then(|(_, state)| state.upgrade());
        if let Some(state) = state {
            return Ok(Gpu(state));
        }
        let open = || -> std::result::Result<Gpu, DriverError> {
            let context = CudaContext::new(ordinal)?;
            // SAFETY: the two streams are ordered where memory goes from one to the other, in `upload`.
            unsafe { context.disable_event_tracking() };
            keep_freed_memory(&context)?;
            let limits = Limits::of(&context)?;
            let (stream, copies, name) = (context.new_stream()?, context.new_stream()?, context.name()?);
            let (modules, functions, waits) = (Mutex::default(), Mutex::default(), AtomicUsize::new(0));
            Ok(Gpu(Arc::new(State { context, stream, copies, limits, name, modules, functions, waits })))
        };
        let gpu = open().map_err(|error| anyhow::anyhow!("cuda:{ordinal}: {}", driver_message(error)))?;
        gpu.check_kernels()?;
        opened.push((ordinal, Arc::downgrade(&gpu.0)));
        Ok(gpu)
    }

    /// That the compiled kernels run here: found now and not at the first launch.
    fn check_kernels(&self) -> AnyResult<()> {
        let Some(file) = COMPILED.files.iter().find(|file| file.name == "scale") else {
            bail!("no kernels were compiled")
        };
        self.module(file.name).map(|_| ()).with_context(|| {
            let mut driver = 0;
            // SAFETY: writes one number.
            let _ = unsafe { sys::cuDriverGetVersion(&mut driver) };
            refusal(self.name(), self.limits().capability, driver, COMPILED.release, COMPILED.capabilities)
        })
    }

    pub fn name(&self) -> &str {
        &self.0.name
    }

    pub fn is_emulated(&self) -> bool {
        self.name().ends_with("(emulated)")
    }

    pub fn limits(&self) -> &Limits {
        &self.0.limits
    }

    pub(super) fn stream(&self) -> &Arc<CudaStream> {
        &self.0.stream
    }

    pub(super) fn copies(&self) -> &Arc<CudaStream> {
        &self.0.copies
    }

    /// Makes the device's context current: each thread has its own current one.
    pub(super) fn bind(&self, call: &str) -> Result<()> {
        self.0.context.bind_to_thread().map_err(driver(call))
    }

    /// Waits for all work submitted so far. Error: what went wrong in it.
    pub fn synchronize(&self) -> Result<()> {
        self.0.waits.fetch_add(1, Ordering::Relaxed);
        self.stream().synchronize().map_err(driver("synchronize"))
    }

    /// How often the host has waited for the device so far.
    pub fn waits(&self) -> usize {
        self.0.waits.load(Ordering::Relaxed)
    }

    /// Free and total bytes of the card. Error: what the driver says.
    pub fn memory(&self) -> Result<(usize, usize)> {
        self.0.context.mem_get_info().map_err(driver("memory"))
    }

    /// What the memory pool holds. Error: what the driver says.
    pub fn pool(&self) -> Result<PoolUse> {
        use sys::CUmemPool_attribute as Attribute;
        let get = |attribute| -> std::result::Result<usize, DriverError> {
            let mut bytes = 0u64;
            // SAFETY: the pool is the device's own, and these attributes are 64-bit numbers.
            unsafe {
                let pool = result::device::get_default_mem_pool(self.0.context.cu_device())?;
                sys::cuMemPoolGetAttribute(pool, attribute, (&raw mut bytes).cast()).result()?;
            }
            Ok(bytes as usize)
        };
        let read = || {
            Ok(PoolUse {
                used: get(Attribute::CU_MEMPOOL_ATTR_USED_MEM_CURRENT)?,
                used_high: get(Attribute::CU_MEMPOOL_ATTR_USED_MEM_HIGH)?,
                reserved: get(Attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT)?,
            })
        };
        self.bind("memory pool")?;
        read().map_err(driver("memory pool"))
    }

    /// What the emulator counted in this process so far; none on a card.
    pub fn emulator_report(&self) -> Option<serde_json::Value> {
        if self.is_emulated() { emulator::report() } else { None }
    }

    /// The compiled kernel of this name.
    pub fn entry(&self, name: &str) -> Option<&'static Entry> {
        compiled(name).map(|(_, entry)| entry)
    }

    /// Submits a kernel to the stream. The values' kinds were checked against the entry's parameters.
    ///
    /// Errors: a block, grid or shared memory beyond the card's limits; what the driver says.
    pub(crate) fn submit(&self, entry: &'static Entry, grid: &Grid, values: &[Value]) -> Result<()> {
        // Attributes of a function are asked for and set in the current context.
        self.bind(entry.name)?;
        let function = self.function(entry)?;
        let blocks = check_grid(entry.name, grid, self.limits(), function.max_threads)?;
        function.reserve_shared(entry.name, grid.shared_bytes, self.limits())?;
        let mut builder = self.stream().launch_builder(&function.function);
        for value in values {
            match value {
                Value::Bits64(value) => builder.arg(value),
                Value::Bits32(value) => builder.arg(value),
                Value::F32(value) => builder.arg(value),
            };
        }
        let [x, y, z] = grid.threads;
        let shared_mem_bytes = grid.shared_bytes as u32; // below the limit that was checked
        let config = LaunchConfig { grid_dim: blocks, block_dim: (x, y, z), shared_mem_bytes };
        // SAFETY: the values are of the kinds that the compiled kernel's PTX lists; the memory behind the pointers is that
        // of tensors whose shapes the operator checked, and outlives the launch because it is freed on the same stream.
        unsafe { builder.launch(config) }.map(|_| ()).map_err(driver(entry.name))
    }

    fn function(&self, entry: &'static Entry) -> Result<Arc<Function>> {
        let mut functions = self.0.functions.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(function) = functions.get(entry.name) {
            return Ok(function.clone());
        }
        let unknown = || LaunchError::Unknown { kernel: entry.name.to_string() };
        let (file, _) = compiled(entry.name).ok_or_else(unknown)?;
        let function = self.module(file.name)?.load_function(entry.name).map_err(driver(entry.name))?;
        let function = Arc::new(Function::new(entry.name, function, self.limits())?);
        functions.insert(entry.name, function.clone());
        Ok(function)
    }

    fn module(&self, name: &'static str) -> Result<Arc<CudaModule>> {
        let mut modules = self.0.modules.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(module) = modules.get(name) {
            return Ok(module.clone());
        }
        let file = COMPILED.files.iter().find(|file| file.name == name);
        let file = file.ok_or_else(|| LaunchError::Unknown { kernel: name.to_string() })?;
        let replaced = env::var_os(KERNELS_VARIABLE).map(|folder| PathBuf::from(folder).join(format!("{name}.ptx")));
        let image = match replaced.and_then(|path| fs::read_to_string(path).ok()) {
            Some(ptx) => Ptx::from_src(ptx),
            None if self.is_emulated() => Ptx::from_src(file.ptx),
            None => Ptx::from_binary(file.cubins.to_vec()),
        };
        let load = |image| self.0.context.load_module(image);
        let module = match load(image) {
            // A card newer than the list: its driver compiles the PTX.
            Err(error) if error.0 == sys::CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU => load(Ptx::from_src(file.ptx)),
            loaded => loaded,
        };
        let module = module.map_err(driver(format!("kernels/{name}.cu")))?;
        modules.insert(name, module.clone());
        Ok(module)
    }
}

impl Limits {
    fn of(context: &CudaContext) -> std::result::Result<Limits, DriverError> {
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
    let list: std::result::Result<Vec<String>, DriverError> = list();
    let devices = list.map_err(|error| {
        anyhow::anyhow!(
            "cuda: found a driver that does not start ({}), expected a card: use --device emulator or cpu",
            driver_message(error)
        )
    })?;
    if devices.is_empty() {
        bail!(
            "cuda: found a driver but no card, expected one (is CUDA_VISIBLE_DEVICES empty?), or use --device emulator or cpu"
        );
    }
    Ok(devices)
}

/// Why no build has kernels for a card of `capability`; `None` where one can have them.
pub fn too_old(capability: u32) -> Option<String> {
    let found = format!("found compute capability {}.{}", capability / 10, capability % 10);
    let reason = "expected 8.0 or newer: no build of the kernels runs there; use another card, or --device cpu";
    (capability < LEAST_CAPABILITY).then(|| format!("{found}, {reason}"))
}

/// Why the kernels that nvcc of `release` compiled for `compiled` do not run on a card of `capability` with a driver for
/// CUDA `driver`, which is 13020 for 13.2; and the way out.
fn refusal(name: &str, capability: u32, driver: i32, release: &str, compiled: &[u32]) -> String {
    if let Some(reason) = too_old(capability) {
        return format!("{name}: {reason}");
    }
    let (major, minor) = (driver / 1000, driver % 1000 / 10);
    let needed = release.split('.').next().and_then(|major| major.parse().ok()).unwrap_or(0);
    if major < needed {
        // The first driver of each major release of CUDA.
        let first = match needed {
            12 => ", which is 525 or newer",
            13 => ", which is 580 or newer",
            _ => "",
        };
        let fetched = if major == 12 { " (scripts/setup_nvcc.sh 12.9 fetches one)" } else { "" };
        return format!(
            "{name}: found a driver for CUDA {major}.{minor}, expected one for CUDA {needed}{first}, because nvcc {release} compiled the kernels: update the driver, or build again with NVCC= of a toolkit of release {major}.x{fetched}"
        );
    }
    format!(
        "{name}: found compute capability {}.{} and a driver for CUDA {major}.{minor}, expected kernels compiled for it ({compiled:?}, by nvcc {release}): build again with CUDA_COMPUTE_CAP={capability}, or update the driver",
        capability / 10,
        capability % 10,
    )
}

/// Freed memory stays in the pool instead of going back to the system at each wait.
fn keep_freed_memory(context: &CudaContext) -> std::result::Result<(), DriverError> {
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

/// The blocks along each axis. Errors: more threads than the kernel takes, more blocks than the card takes.
fn check_grid(name: &str, grid: &Grid, limits: &Limits, most_threads: u32) -> Result<(u32, u32, u32)> {
    let threads = grid.threads.iter().try_fold(1u32, |product, &x| product.checked_mul(x)).unwrap_or(u32::MAX);
    if threads == 0 || threads > most_threads {
        return Err(LaunchError::Threads { kernel: name.to_string(), requested: threads, limit: most_threads });
    }
    let mut blocks = [0; 3];
    for (i, (&requested, &limit)) in grid.blocks.iter().zip(&limits.grid).enumerate() {
        let refused = LaunchError::Grid { kernel: name.to_string(), axis: ['x', 'y', 'z'][i], requested, limit };
        blocks[i] = u32::try_from(requested).ok().filter(|&n| n <= limit).ok_or(refused)?;
    }
    let [x, y, z] = blocks;
    Ok((x, y, z))
}

/// The driver's error, with its text: under the emulator that is the diagnosis.
pub(super) fn driver(call: impl Into<String>) -> impl FnOnce(DriverError) -> LaunchError {
    move |error| driver_error(call, error)
}

pub(super) fn driver_error(call: impl Into<String>, error: DriverError) -> LaunchError {
    LaunchError::Driver { call: call.into(), message: driver_message(error) }
}

/// `CUDA_ERROR_ILLEGAL_ADDRESS: an illegal memory access was encountered`
fn driver_message(error: DriverError) -> String {
    let text = |found: std::result::Result<&std::ffi::CStr, DriverError>| {
        found.map(|text| text.to_string_lossy().into_owned())
    };
    let DriverError(code) = error;
    let name = text(error.error_name()).unwrap_or_else(|_| format!("{code:?}"));
    format!("{name}: {}", text(error.error_string()).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::{refusal, too_old};

    #[test]
    fn a_refused_driver_is_named_with_the_one_it_takes() {
        let said = refusal("card", 89, 12040, "13.0", &[80, 89]);
        let (found, expected) = ("found a driver for CUDA 12.4", "expected one for CUDA 13, which is 580 or newer");
        assert!(said.contains(found) && said.contains(expected), "{said}");
        assert!(said.contains("update the driver") && said.contains("NVCC= of a toolkit of release 12.x"), "{said}");
        assert!(refusal("card", 89, 11080, "12.9", &[89]).contains("expected one for CUDA 12, which is 525 or newer"));
    }

    #[test]
    fn a_card_that_no_build_serves_is_not_told_to_build_again() {
        for (capability, found) in [(75, "7.5"), (61, "6.1")] {
            for driver in [11080, 14010] {
                let said = refusal("card", capability, driver, "13.0", &[80, 89]);
                assert!(said.contains(&format!("found compute capability {found}, expected 8.0")), "{said}");
                assert!(!said.contains("CUDA_COMPUTE_CAP") && !said.contains("update"), "{said}");
            }
        }
        assert_eq!(too_old(80), None);
    }

    #[test]
    fn a_card_without_kernels_is_told_how_to_compile_them() {
        for driver in [13000, 14010] {
            let said = refusal("card", 120, driver, "13.0", &[80, 89]);
            assert!(said.contains("found compute capability 12.0") && said.contains("CUDA_COMPUTE_CAP=120"), "{said}");
        }
    }
}
