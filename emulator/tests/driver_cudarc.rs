//! cudarc programs, unchanged, with the emulator in place of a driver.

mod library;
#[path = "../examples/saxpy.rs"]
mod saxpy;

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{Arc, Mutex, MutexGuard, Once};

use cudarc::driver::{CudaContext, CudaModule, CudaStream, DriverError, LaunchConfig, PushKernelArg, sys};
use cudarc::nvrtc::Ptx;
use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};

const SAXPY: &str = include_str!("saxpy.ptx");

/// Loads the library by its path before cudarc looks for a driver: cudarc then finds this one under its soname. Where a
/// real driver is installed with its link `libcuda.so`, which cudarc asks for first, `LD_LIBRARY_PATH` has to decide, and
/// the loader reads that when a process starts: the tests start anew.
fn device() -> Arc<CudaContext> {
    static LOAD: Once = Once::new();
    LOAD.call_once(|| {
        let folder = library::driver_folder("cudarc");
        let paths = std::env::var("LD_LIBRARY_PATH").unwrap_or_default();
        let decided = paths.starts_with(folder.to_str().expect("a path in UTF-8"));
        // SAFETY: loading a driver runs nothing but its initialisers.
        if !decided && unsafe { Library::open(Some("libcuda.so"), RTLD_NOW) }.is_ok() {
            let mut again = Command::new(std::env::current_exe().unwrap());
            again.args(std::env::args_os().skip(1)).env("LD_LIBRARY_PATH", format!("{}:{paths}", folder.display()));
            panic!("starting anew failed: {}", again.exec());
        }
        // SAFETY: loading the library runs nothing but the loader.
        let library = unsafe { Library::open(Some(library::library()), RTLD_NOW | RTLD_GLOBAL) }.expect("the emulator");
        std::mem::forget(library);
    });
    let context = CudaContext::new(0).expect("the emulated device");
    assert!(context.name().unwrap().contains("emulated"), "a real driver was found first");
    context
}

struct Setup {
    context: Arc<CudaContext>,
    stream: Arc<CudaStream>,
    module: Arc<CudaModule>,
    /// One test at a time: a wait is one for the copies of all, and a fault is told again to whoever waits next.
    _turn: Option<MutexGuard<'static, ()>>,
}

fn setup() -> Setup {
    static TURN: Mutex<()> = Mutex::new(());
    let turn = TURN.lock().unwrap_or_else(|failed| failed.into_inner());
    let context = device();
    let module = context.load_module(Ptx::from_src(SAXPY)).unwrap();
    Setup { stream: context.new_stream().unwrap(), context, module, _turn: Some(turn) }
}

impl Setup {
    /// y = 2x + y for `n` of `x.len()` elements.
    fn saxpy(&self, x: &[f32], n: i32) -> Result<Vec<f32>, DriverError> {
        let saxpy = self.module.load_function("saxpy")?;
        let xs = self.stream.clone_htod(x)?;
        let mut ys = self.stream.clone_htod(&vec![1.0f32; x.len()])?;
        let a = 2.0f32;
        let mut launch = self.stream.launch_builder(&saxpy);
        launch.arg(&n).arg(&a).arg(&xs).arg(&mut ys);
        // SAFETY: the kernel's own arguments; where `n` is too large, that is what the test is about.
        unsafe { launch.launch(LaunchConfig::for_num_elems(n as u32)) }?;
        self.stream.clone_dtoh(&ys)
    }
}

fn text(error: DriverError) -> String {
    error.error_string().unwrap().to_str().unwrap().to_string()
}

#[test]
fn allocate_copy_launch_and_read_back() {
    let setup = setup();
    let x: Vec<f32> = (0..1000).map(|i| i as f32).collect();
    let y = setup.saxpy(&x, 1000).unwrap();
    assert!(y.iter().enumerate().all(|(i, &y)| y == 2.0 * i as f32 + 1.0), "{y:?}");
    setup.context.synchronize().unwrap();
}

#[test]
fn out_of_bounds_is_an_error_string_and_the_context_goes_on() {
    let setup = setup();
    let error = setup.saxpy(&[0.0; 1000], 1001).unwrap_err();
    assert_eq!(error.0, sys::CUresult::CUDA_ERROR_ILLEGAL_ADDRESS);
    let text = text(error);
    assert!(text.contains("saxpy") && text.contains("1000"), "{text}");
    // Once more at the next wait, for programs that ignore what a launch returns.
    let again = setup.stream.synchronize().unwrap_err();
    assert_eq!(again.0, sys::CUresult::CUDA_ERROR_ILLEGAL_ADDRESS);
    setup.stream.synchronize().unwrap();
    assert_eq!(setup.saxpy(&[3.0; 8], 8).unwrap(), [7.0; 8]);
}

#[test]
fn a_kernel_that_does_not_exist() {
    let error = setup().module.load_function("saxpi").unwrap_err();
    assert_eq!(error.0, sys::CUresult::CUDA_ERROR_NOT_FOUND);
    assert!(text(error).starts_with("no kernel \"saxpi\": the module has saxpy"));
}

#[test]
fn streams_without_an_event_between_them_are_found() {
    let setup = setup();
    // SAFETY: turns cudarc's own events off, which is what this test is about.
    unsafe { setup.context.disable_event_tracking() };
    let other = setup.context.new_stream().unwrap();
    let xs = setup.stream.clone_htod(&[1.0f32; 256]).unwrap();
    setup.stream.synchronize().unwrap();
    let mut ys = setup.stream.alloc_zeros::<f32>(256).unwrap();
    setup.stream.synchronize().unwrap();
    let saxpy = setup.module.load_function("saxpy").unwrap();
    let (n, a) = (256i32, 2.0f32);
    let mut launch = setup.stream.launch_builder(&saxpy);
    launch.arg(&n).arg(&a).arg(&xs).arg(&mut ys);
    // SAFETY: the kernel's own arguments.
    unsafe { launch.launch(LaunchConfig::for_num_elems(256)) }.unwrap();

    let error = other.clone_dtoh(&ys).unwrap_err();
    assert_eq!(error.0, sys::CUresult::CUDA_ERROR_ILLEGAL_STATE);
    let text = text(error);
    assert!(text.starts_with("missing synchronisation: kernel saxpy on stream"), "{text}");
    assert!(text.contains("wrote bytes 0..1024 of the 1024-byte allocation"), "{text}");
    assert!(text.contains("cuMemcpyDtoHAsync on stream"), "{text}");

    other.join(&setup.stream).unwrap();
    assert_eq!(other.clone_dtoh(&ys).unwrap(), [2.0; 256]);
}

#[test]
fn the_events_of_cudarc_are_enough() {
    let setup = setup();
    let other = setup.context.new_stream().unwrap();
    let xs = setup.stream.clone_htod(&[1.0f32; 256]).unwrap();
    let mut ys = other.clone_htod(&[1.0f32; 256]).unwrap();
    let saxpy = setup.module.load_function("saxpy").unwrap();
    let (n, a) = (256i32, 2.0f32);
    for stream in [&setup.stream, &other, &setup.stream] {
        let mut launch = stream.launch_builder(&saxpy);
        launch.arg(&n).arg(&a).arg(&xs).arg(&mut ys);
        // SAFETY: the kernel's own arguments.
        unsafe { launch.launch(LaunchConfig::for_num_elems(256)) }.unwrap();
    }
    assert_eq!(other.clone_dtoh(&ys).unwrap(), [7.0; 256]);
}

#[test]
fn pinned_memory_holds_poison_until_the_wait() {
    let setup = setup();
    // SAFETY: written by the copy before it is read, or read as poison, which any u32 may be.
    let mut pinned = unsafe { setup.context.alloc_pinned::<u32>(4) }.unwrap();
    let host = pinned.as_mut_ptr().unwrap();
    let device = setup.stream.clone_htod(&[1u32, 2, 3, 4]).unwrap();
    setup.stream.memcpy_dtoh(&device, &mut pinned).unwrap();
    // SAFETY: the block is alive; nothing else writes it now.
    assert_eq!(unsafe { host.read() }, u32::MAX);
    assert_eq!(pinned.as_slice().unwrap(), [1, 2, 3, 4]);
}

#[test]
fn threads_share_the_device() {
    let setup = setup();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let setup = &setup;
            scope.spawn(move || {
                let stream = setup.context.new_stream().unwrap();
                let own = Setup { context: setup.context.clone(), stream, module: setup.module.clone(), _turn: None };
                for round in 0..8 {
                    let x = (thread * 8 + round) as f32;
                    assert_eq!(own.saxpy(&[x; 300], 300).unwrap(), [2.0 * x + 1.0; 300]);
                }
            });
        }
    });
}

#[test]
fn the_card_answers() {
    let context = device();
    assert_eq!(context.compute_capability().unwrap(), (8, 9));
    assert_eq!(context.total_mem().unwrap(), 24 << 30);
    assert!(context.mem_get_info().unwrap().0 <= 24 << 30);
    let function = setup().module.load_function("saxpy").unwrap();
    assert!(function.num_regs().unwrap() > 0);
    assert_eq!(function.max_threads_per_block().unwrap(), 1024);
    let occupancy = function.occupancy_max_active_blocks_per_multiprocessor(256, 0, None).unwrap();
    assert_eq!(occupancy, 6);
}

/// What the child processes below run; in the tests' own process it does nothing.
#[test]
fn child() {
    if let Ok(excess) = std::env::var("SAXPY_EXCESS") {
        saxpy::run(excess.parse().unwrap()).unwrap();
    }
}

/// The example, in its own process that finds the library through `LD_LIBRARY_PATH`.
fn example(excess: &str, card: &str, report: &Path) -> Output {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child", "--nocapture"])
        .env("SAXPY_EXCESS", excess)
        .env("LD_LIBRARY_PATH", library::driver_folder(card))
        .env("HANDGRAD_EMULATOR_CARD", card)
        .env("HANDGRAD_EMULATOR_REPORT", report)
        .output()
        .expect("this test as a child")
}

fn report_path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(name)
}

#[test]
fn the_same_through_the_library_path() {
    let output = example("0", "h200", &report_path("good.json"));
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{out}{err}");
    assert!(out.contains("NVIDIA H200 (emulated)\n") && out.contains("y[999] = 1999\n"), "{out}");
    assert!(!err.contains("cuda-emulator"), "{err}");
    let report = std::fs::read_to_string(report_path("good.json")).unwrap();
    assert!(report.contains("saxpy"), "{report}");
}

#[test]
fn a_fault_ends_the_process_with_the_diagnosis() {
    let output = example("1", "rtx4090", &report_path("bad.json"));
    let err = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success());
    assert!(err.contains("cuda-emulator: cuLaunchKernel: "), "{err}");
    assert!(err.contains("DriverError(CUDA_ERROR_ILLEGAL_ADDRESS, "), "{err}");
}

#[test]
fn an_unknown_card_is_no_device() {
    let output = example("0", "rtx9999", &report_path("none.json"));
    let err = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success());
    assert!(err.contains("CUDA_ERROR_NO_DEVICE") && err.contains("expected one of rtx4090, h200"), "{err}");
}
