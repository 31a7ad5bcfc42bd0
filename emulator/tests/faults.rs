//! Planted faults: every check finds its mistake, and says where: the CUDA error, the kernel, the line of the .cu file
//! that carries `FAULT: kernel`, block, thread, and what was touched. Compiled with -DFIXED, the same kernels pass.

mod support;

use cuda_emulator::device::Options;
use cuda_emulator::fault::{Code, Fault, Result};
use support::gpu::{Arg, Gpu, Shape, shape};
use support::nvcc::{O3, ptx, source_path};

/// A launch of a kernel with its inputs.
type Run = fn(&mut Gpu, &'static str) -> Result<()>;

struct Planted {
    file: &'static str,
    kernel: &'static str,
    code: Code,
    /// Where it is found; `None` where that depends on the order.
    block: Option<u32>,
    thread: Option<u32>,
    /// What the diagnosis must say besides.
    says: &'static [&'static str],
    run: Run,
}

fn gpu(file: &str, flags: &[&str], seed: u64) -> Gpu {
    let options = Options { seed, step_limit: 200_000 };
    Gpu::with(&ptx(&format!("faults/{file}"), flags), options).unwrap_or_else(|fault| panic!("{file}: {fault}"))
}

/// The lines that a kernel's marker stands on.
fn marked(file: &str, kernel: &str) -> Vec<usize> {
    let text = std::fs::read_to_string(source_path(&format!("faults/{file}"))).unwrap();
    let marker = format!("FAULT: {kernel}");
    let lines = text.lines().enumerate().filter(|(_, line)| line.trim_end().ends_with(&marker));
    lines.map(|(i, _)| i + 1).collect()
}

fn check(planted: &Planted) {
    let Planted { file, kernel, .. } = *planted;
    for seed in 0..3 {
        let fault = (planted.run)(&mut gpu(file, O3, seed), kernel).expect_err(kernel);
        check_text(planted, &fault);
        let again = (planted.run)(&mut gpu(file, O3, seed), kernel).expect_err(kernel);
        assert_eq!(fault, again, "{kernel}: the same seed, another report");
    }
    let fixed = [O3, &["-DFIXED"]].concat();
    for seed in 0..3 {
        if let Err(fault) = (planted.run)(&mut gpu(file, &fixed, seed), kernel) {
            panic!("{kernel} without the mistake, seed {seed}: {fault}");
        }
    }
}

fn check_text(planted: &Planted, fault: &Fault) {
    let Planted { file, kernel, .. } = *planted;
    let text = &fault.message;
    assert_eq!(fault.code, planted.code, "{kernel}: {text}");
    assert!(!text.contains('\n'), "{kernel}: more than a line: {text}");
    let places: Vec<String> =
        marked(file, kernel).iter().map(|line| format!("kernel {kernel}, {file}:{line}")).collect();
    // Behind the line stands what it was inlined from, or the block.
    let found = |place: &String| text.contains(&format!("{place},")) || text.contains(&format!("{place} ("));
    assert!(places.iter().any(found), "{kernel}: expected one of {places:?} in: {text}");
    let mut says: Vec<String> = planted.says.iter().map(|s| s.to_string()).collect();
    says.extend(planted.block.map(|block| format!("block ({block},0,0), thread")));
    says.extend(planted.thread.map(|thread| format!("thread ({thread},0,0), ")));
    for part in says {
        assert!(text.contains(&part), "{kernel}: expected {part:?} in: {text}");
    }
}

/// x and y of `n` floats each, `n` as the last argument; 64 threads a block.
fn floats(gpu: &mut Gpu, kernel: &str, n: usize) -> Result<()> {
    let x: Vec<f32> = (0..n).map(|i| i as f32 + 1.0).collect();
    let (x, y) = (gpu.upload(&x)?, gpu.alloc::<f32>(n)?);
    gpu.launch(kernel, shape(n.div_ceil(64), 64), &[Arg::Pointer(x), Arg::Pointer(y), Arg::I32(n as i32)])
}

/// The same without `n`.
fn pointers(gpu: &mut Gpu, kernel: &str, n: usize) -> Result<()> {
    let x: Vec<f32> = (0..n).map(|i| i as f32 + 1.0).collect();
    let (x, y) = (gpu.upload(&x)?, gpu.alloc::<f32>(n)?);
    gpu.launch(kernel, shape(n.div_ceil(64), 64), &[Arg::Pointer(x), Arg::Pointer(y)])
}

fn bounds(kernel: &'static str, code: Code, at: (u32, u32), says: &'static [&'static str], run: Run) {
    check(&Planted { file: "bounds.cu", kernel, code, block: Some(at.0), thread: Some(at.1), says, run });
}

#[test]
fn read_out_of_bounds() {
    let says = &["out of bounds", "allocation 2 (512 bytes at", "reads 4 bytes"];
    bounds("read_out_of_bounds", Code::IllegalAddress, (1, 37), says, |gpu, kernel| floats(gpu, kernel, 128));
}

#[test]
fn write_out_of_bounds() {
    let says = &["out of bounds", "allocation 2 (400 bytes at", "writes 4 bytes"];
    bounds("write_out_of_bounds", Code::IllegalAddress, (1, 6), says, |gpu, kernel| floats(gpu, kernel, 100));
}

#[test]
fn past_the_end() {
    let says = &["out of bounds", "0 bytes past the end of allocation 1 (400 bytes at"];
    bounds("past_the_end", Code::IllegalAddress, (1, 36), says, |gpu, kernel| floats(gpu, kernel, 100));
}

#[test]
fn before_the_start() {
    let says = &["out of bounds", "4 bytes before allocation 1 (400 bytes at"];
    bounds("before_the_start", Code::IllegalAddress, (0, 0), says, |gpu, kernel| floats(gpu, kernel, 100));
}

#[test]
fn shared_memory_out_of_bounds() {
    let says = &["out of bounds", "shared address 0x100", "256 bytes"];
    let run: Run = |gpu, kernel| floats(gpu, kernel, 64);
    bounds("shared_out_of_bounds", Code::IllegalAddress, (0, 63), says, run);
}

#[test]
fn dynamic_shared_memory_out_of_bounds() {
    let says = &["out of bounds", "shared address 0x100", "256 bytes"];
    bounds("dynamic_shared_out_of_bounds", Code::IllegalAddress, (0, 32), says, |gpu, kernel| {
        let (x, y) = (gpu.upload(&[1.0f32; 64])?, gpu.alloc::<f32>(64)?);
        gpu.launch(kernel, shape(1, 64).shared(256), &[Arg::Pointer(x), Arg::Pointer(y), Arg::I32(64)])
    });
}

#[test]
fn local_memory_out_of_bounds() {
    let says = &["out of bounds", "local address", "32 bytes"];
    bounds("local_out_of_bounds", Code::IllegalAddress, (1, 2), says, |gpu, kernel| {
        let (order, y) = (gpu.upload(&[3i32, 1, 7, 5, 0, 2, 6, 4])?, gpu.alloc::<f32>(128)?);
        gpu.launch(kernel, shape(2, 64), &[Arg::Pointer(order), Arg::Pointer(y), Arg::I32(128)])
    });
}

#[test]
fn use_after_free() {
    let mut gpu = gpu("bounds.cu", O3, 0);
    let (x, y) = (gpu.upload(&[1.0f32; 64]).unwrap(), gpu.alloc::<f32>(64).unwrap());
    gpu.free(x).unwrap();
    let fault = gpu.launch("use_after_free", shape(1, 64), &[Arg::Pointer(x), Arg::Pointer(y), Arg::I32(64)]);
    let says = &["use after free", "allocation 1 (256 bytes at", "reads 4 bytes"];
    let (file, kernel, code) = ("bounds.cu", "use_after_free", Code::IllegalAddress);
    let run: Run = |_, _| Ok(());
    check_text(&Planted { file, kernel, code, block: Some(0), thread: Some(0), says, run }, &fault.unwrap_err());
}

#[test]
fn misaligned_vector() {
    let says = &["misaligned", "16 bytes at", "allocation 1 (1024 bytes at"];
    bounds("misaligned_vector", Code::MisalignedAddress, (0, 5), says, |gpu, kernel| floats(gpu, kernel, 256));
}

#[test]
fn misaligned_store() {
    let says = &["misaligned", "4 bytes at", "allocation 2 (256 bytes at"];
    bounds("misaligned_store", Code::MisalignedAddress, (0, 3), says, |gpu, kernel| floats(gpu, kernel, 64));
}

#[test]
fn atomic_out_of_bounds() {
    let says = &["out of bounds", "past the end of allocation 2 (64 bytes at"];
    bounds("atomic_out_of_bounds", Code::IllegalAddress, (0, 50), says, |gpu, kernel| {
        let mut x = vec![3u32; 64];
        x[50] = 17;
        let (x, y) = (gpu.upload(&x)?, gpu.upload(&[0u32; 16])?);
        gpu.launch(kernel, shape(1, 64), &[Arg::Pointer(x), Arg::Pointer(y), Arg::I32(64)])
    });
}

#[test]
fn copy_out_of_bounds() {
    let says = &["out of bounds", "past the end of allocation 1 (404 bytes at"];
    bounds("copy_out_of_bounds", Code::IllegalAddress, (0, 25), says, |gpu, kernel| {
        let (x, y) = (gpu.upload(&[1.0f32; 101])?, gpu.alloc::<f32>(64)?);
        gpu.launch(kernel, shape(1, 64), &[Arg::Pointer(x), Arg::Pointer(y), Arg::I32(101)])
    });
}

/// The line is the caller's, not the header's.
#[test]
fn inside_helpers() {
    let run: Run = |gpu, kernel| floats(gpu, kernel, 64);
    bounds("inside_a_helper", Code::IllegalAddress, (0, 9), &["4 bytes before allocation 2"], run);
    bounds("inside_two_helpers", Code::IllegalAddress, (0, 9), &["past the end of allocation 1"], run);
}

fn uninitialised(kernel: &'static str, at: (Option<u32>, Option<u32>), says: &'static [&'static str], run: Run) {
    let (file, code) = ("uninitialised.cu", Code::LaunchFailed);
    check(&Planted { file, kernel, code, block: at.0, thread: at.1, says, run });
}

/// 128 elements of which 100 are written.
fn partly_written(gpu: &mut Gpu) -> Result<u64> {
    let x = gpu.alloc::<f32>(128)?;
    gpu.write(x, &[1.0f32; 100])?;
    Ok(x)
}

#[test]
fn uninitialised_global_memory() {
    let says = &["uninitialised", "allocation 1 (512 bytes at"];
    uninitialised("uninitialised_global", (Some(1), Some(36)), says, |gpu, kernel| {
        let (x, y) = (partly_written(gpu)?, gpu.alloc::<f32>(128)?);
        gpu.launch(kernel, shape(2, 64), &[Arg::Pointer(x), Arg::Pointer(y), Arg::I32(128)])
    });
}

#[test]
fn uninitialised_shared_memory() {
    let says = &["uninitialised", "shared address 0x34"];
    uninitialised("uninitialised_shared", (Some(0), Some(50)), says, |gpu, kernel| floats(gpu, kernel, 64));
}

#[test]
fn uninitialised_local_memory() {
    let says = &["uninitialised", "local address", "lanes 7, 15, 23, 31"];
    uninitialised("uninitialised_local", (Some(0), None), says, |gpu, kernel| {
        let (order, y) = (gpu.upload(&[3i32, 1, 7, 5, 0, 2, 6, 4])?, gpu.alloc::<f32>(64)?);
        gpu.launch(kernel, shape(1, 64), &[Arg::Pointer(order), Arg::Pointer(y), Arg::I32(64)])
    });
}

#[test]
fn uninitialised_register() {
    let says = &["uninitialised", "register"];
    uninitialised("uninitialised_register", (Some(1), Some(13)), says, |gpu, kernel| floats(gpu, kernel, 128));
}

#[test]
fn uninitialised_predicate() {
    let says = &["uninitialised", "allocation 1 (512 bytes at"];
    uninitialised("uninitialised_branch", (Some(1), Some(36)), says, |gpu, kernel| {
        let flags = gpu.alloc::<i32>(128)?;
        gpu.write(flags, &[1i32; 100])?;
        let y = gpu.alloc::<f32>(1)?;
        gpu.launch(kernel, shape(2, 64), &[Arg::Pointer(flags), Arg::Pointer(y), Arg::I32(128)])
    });
}

#[test]
fn uninitialised_address() {
    let says = &["uninitialised", "address", "allocation 1 (512 bytes at"];
    uninitialised("uninitialised_address", (Some(1), Some(36)), says, |gpu, kernel| {
        let index = gpu.alloc::<i32>(128)?;
        gpu.write(index, &[7i32; 100])?;
        let (x, y) = (gpu.upload(&[1.0f32; 8])?, gpu.alloc::<f32>(128)?);
        gpu.launch(
            kernel,
            shape(2, 64),
            &[index, x, y].map(Arg::Pointer).into_iter().chain([Arg::I32(128)]).collect::<Vec<_>>(),
        )
    });
}

#[test]
fn uninitialised_copy() {
    let says = &["uninitialised", "copies", "allocation 1 (512 bytes at"];
    uninitialised("uninitialised_copy", (Some(1), Some(36)), says, |gpu, kernel| {
        let (x, y) = (partly_written(gpu)?, gpu.alloc::<f32>(128)?);
        gpu.launch(kernel, shape(2, 64), &[Arg::Pointer(x), Arg::Pointer(y), Arg::I32(128)])
    });
}

/// Reading without using is no mistake: real code loads a whole vector and takes a part.
#[test]
fn unused_uninitialised_values_pass() {
    for seed in 0..3 {
        let mut gpu = gpu("uninitialised.cu", O3, seed);
        let (x, y) = (partly_written(&mut gpu).unwrap(), gpu.alloc::<f32>(128).unwrap());
        let args = [Arg::Pointer(x), Arg::Pointer(y), Arg::I32(128)];
        gpu.launch("uninitialised_unused", shape(2, 64), &args).unwrap();
        let y: Vec<f32> = gpu.download(y, 128).unwrap();
        assert!(y[..100].iter().all(|&v| v == 1.0) && y[100..].iter().all(|&v| v == 0.0));
    }
}

fn race(kernel: &'static str, says: &'static [&'static str], run: Run) {
    let (file, code) = ("races.cu", Code::LaunchFailed);
    check(&Planted { file, kernel, code, block: None, thread: None, says, run });
}

#[test]
fn shared_race_read_after_write() {
    race("read_after_write", &["race", "shared address", "no barrier"], |gpu, kernel| pointers(gpu, kernel, 64));
}

#[test]
fn shared_race_write_after_read() {
    race("write_after_read", &["race", "shared address", "no barrier"], |gpu, kernel| {
        let x: Vec<f32> = (0..64 * 3).map(|i| i as f32).collect();
        let (x, y) = (gpu.upload(&x)?, gpu.alloc::<f32>(64)?);
        gpu.launch(kernel, shape(1, 64), &[Arg::Pointer(x), Arg::Pointer(y), Arg::I32(3)])
    });
}

#[test]
fn shared_race_write_after_write() {
    race("write_after_write", &["race", "writes", "wrote"], |gpu, kernel| pointers(gpu, kernel, 64));
}

#[test]
fn race_within_a_warp() {
    race("within_a_warp", &["race", "no __syncwarp"], |gpu, kernel| pointers(gpu, kernel, 64));
}

#[test]
fn barrier_of_half_a_warp() {
    race("half_a_warp", &["race", "no __syncwarp"], |gpu, kernel| {
        let x: Vec<f32> = (0..32).map(|i| i as f32).collect();
        let (x, y) = (gpu.upload(&x)?, gpu.alloc::<f32>(32)?);
        gpu.launch(kernel, shape(1, 32), &[Arg::Pointer(x), Arg::Pointer(y)])
    });
}

#[test]
fn race_of_atomic_and_plain_access() {
    race("atomic_and_plain", &["race", "hared address"], |gpu, kernel| {
        let (x, y) = (gpu.upload(&[1i32; 64])?, gpu.alloc::<i32>(1)?);
        gpu.launch(kernel, shape(1, 64), &[Arg::Pointer(x), Arg::Pointer(y)])
    });
}

#[test]
fn global_race_within_a_block() {
    race("global_in_a_block", &["race", "allocation 2 (256 bytes at", "no barrier"], |gpu, kernel| {
        let x: Vec<f32> = (0..64).map(|i| i as f32 + 1.0).collect();
        let (x, scratch, y) = (gpu.upload(&x)?, gpu.upload(&[0.0f32; 64])?, gpu.alloc::<f32>(64)?);
        gpu.launch(kernel, shape(1, 64), &[x, scratch, y].map(Arg::Pointer))
    });
}

#[test]
fn global_race_between_blocks() {
    let says = &["race", "writes 4 bytes", "allocation 2 (512 bytes at", "wrote"];
    race("global_between_blocks", says, |gpu, kernel| pointers(gpu, kernel, 128));
}

#[test]
fn copy_without_barrier() {
    race("copy_without_barrier", &["shared address"], |gpu, kernel| pointers(gpu, kernel, 64));
}

#[test]
fn copy_without_wait() {
    let says = &["cp.async", "shared address", "before the wait"];
    race("copy_without_wait", says, |gpu, kernel| pointers(gpu, kernel, 64));
}

#[test]
fn copy_of_the_wrong_group() {
    let says = &["cp.async", "shared address", "before the wait"];
    race("copy_of_the_wrong_group", says, |gpu, kernel| {
        let (x, y) = (gpu.upload(&[1.0f32; 128])?, gpu.alloc::<f32>(64)?);
        gpu.launch(kernel, shape(1, 64), &[Arg::Pointer(x), Arg::Pointer(y)])
    });
}

fn stop(kernel: &'static str, code: Code, at: (Option<u32>, Option<u32>), says: &'static [&'static str], run: Run) {
    check(&Planted { file: "stops.cu", kernel, code, block: at.0, thread: at.1, says, run });
}

#[test]
fn divergent_barrier() {
    let says = &["barrier in divergent code", "lanes 0-15"];
    stop("divergent_barrier", Code::LaunchFailed, (Some(0), None), says, |gpu, kernel| pointers(gpu, kernel, 64));
}

#[test]
fn lanes_that_never_meet() {
    let run: Run = |gpu, kernel| pointers(gpu, kernel, 64);
    stop("lanes_never_meet", Code::LaunchFailed, (Some(0), None), &["lanes 0-15", "lanes 16-31"], run);
}

#[test]
fn shuffle_from_absent_lane() {
    let says = &["lane 29 reads from lane 30"];
    stop("shuffle_from_absent_lane", Code::LaunchFailed, (Some(0), Some(29)), says, |gpu, kernel| {
        let (x, y) = (gpu.upload(&[1i32; 32])?, gpu.alloc::<i32>(32)?);
        gpu.launch(kernel, shape(1, 32), &[Arg::Pointer(x), Arg::Pointer(y)])
    });
}

#[test]
fn deadlock() {
    let says = &["deadlock", "barrier 1 waits for 64 threads, 32 came", "barrier 2 waits for 64 threads, 32 came"];
    stop("deadlock", Code::LaunchTimeout, (Some(0), None), says, |gpu, kernel| pointers(gpu, kernel, 64));
}

#[test]
fn endless_loop() {
    stop("endless_loop", Code::LaunchTimeout, (Some(0), None), &["hang", "200000"], |gpu, kernel| {
        let (x, flag, y) = (gpu.upload(&[1.0f32; 64])?, gpu.upload(&[0i32])?, gpu.alloc::<f32>(64)?);
        gpu.launch(kernel, shape(1, 64), &[x, flag, y].map(Arg::Pointer))
    });
}

#[test]
fn trapped() {
    let run: Run = |gpu, kernel| pointers(gpu, kernel, 128);
    stop("trapped", Code::LaunchFailed, (Some(1), Some(11)), &["trap"], run);
}

#[test]
fn asserted() {
    let says = &["assertion `!WRONG || i != 75` failed at", "stops.cu"];
    stop("asserted", Code::Assert, (Some(1), Some(11)), says, |gpu, kernel| pointers(gpu, kernel, 128));
}

// ---- Limits of the card: nothing runs -----------------------------------------------------------------------------------

fn refused(kernel: &str, shape: Shape, args: impl Fn(&mut Gpu) -> Vec<Arg>, code: Code, says: &[&str]) {
    let mut gpu = gpu("limits.cu", O3, 0);
    let args = args(&mut gpu);
    let fault = gpu.launch(kernel, shape, &args).expect_err(kernel);
    assert_eq!(fault.code, code, "{kernel}: {fault}");
    for part in [&[kernel], says].concat() {
        assert!(fault.message.contains(part), "{kernel}: expected {part:?} in: {fault}");
    }
    assert!(!fault.message.contains('\n'), "{fault}");
}

fn accepted(kernel: &str, shape: Shape, args: impl Fn(&mut Gpu) -> Vec<Arg>) {
    let mut gpu = gpu("limits.cu", O3, 0);
    let args = args(&mut gpu);
    gpu.launch(kernel, shape, &args).unwrap_or_else(|fault| panic!("{kernel}: {fault}"));
}

fn output(gpu: &mut Gpu, n: usize) -> Arg {
    Arg::Pointer(gpu.alloc::<f32>(n).unwrap())
}

fn one_float(gpu: &mut Gpu) -> Arg {
    Arg::Pointer(gpu.upload(&[1.0f32]).unwrap())
}

#[test]
fn threads_and_grid() {
    let args = |gpu: &mut Gpu| vec![output(gpu, 1024)];
    accepted("plain", shape(1, 1024), args);
    refused("plain", shape(1, 1025), args, Code::InvalidValue, &["1025", "1024"]);
    refused("plain", shape(1, 0), args, Code::InvalidValue, &["block.x is 0"]);
    refused("plain", shape(0, 32), args, Code::InvalidValue, &["grid.x is 0"]);
    let tall = support::gpu::shape_3d([1, 65_536, 1], [1, 1, 1]);
    refused("plain", tall, args, Code::InvalidValue, &["grid.y is 65536", "65535"]);
    let cube = support::gpu::shape_3d([1, 1, 1], [32, 32, 2]);
    refused("plain", cube, args, Code::InvalidValue, &["2048", "1024"]);
    let deep = support::gpu::shape_3d([1, 1, 1], [1, 1, 65]);
    refused("plain", deep, args, Code::InvalidValue, &["block.z is 65", "64"]);
    accepted("at_most_128_threads", shape(1, 128), args);
    refused("at_most_128_threads", shape(1, 129), args, Code::InvalidValue, &["129", "128"]);
}

#[test]
fn shared_memory() {
    let args = |gpu: &mut Gpu| vec![one_float(gpu), output(gpu, 64)];
    refused("large_static_shared", shape(1, 64), args, Code::InvalidValue, &["61440", "49152"]);

    let floats = |n: i32| move |gpu: &mut Gpu| vec![one_float(gpu), output(gpu, 64), Arg::I32(n)];
    let kernel = "dynamic_shared";
    accepted(kernel, shape(1, 64).shared(49_152), floats(49_152 / 4));
    accepted(kernel, shape(1, 64).shared(101_376), floats(101_376 / 4));
    refused(kernel, shape(1, 64).shared(101_380), floats(64), Code::InvalidValue, &["101380", "101376"]);
    let without = Shape { dynamic_shared_limit: 49_152, ..shape(1, 64).shared(49_156) };
    refused(kernel, without, floats(64), Code::InvalidValue, &["49156", "MAX_DYNAMIC_SHARED_SIZE_BYTES"]);
}

#[test]
fn registers_times_threads() {
    let args = |threads: usize| {
        move |gpu: &mut Gpu| {
            let x = gpu.upload(&vec![0.5f32; threads]).unwrap();
            vec![Arg::Pointer(x), output(gpu, 128 * threads), Arg::I32(1)]
        }
    };
    refused("many_registers", shape(1, 1024), args(1024), Code::LaunchOutOfResources, &["1024", "65536", "registers"]);
    accepted("many_registers", shape(1, 256), args(256));
}

// ---- The host's side ---------------------------------------------------------------------------------------------------

#[test]
fn leaks_at_release() {
    let mut gpu = gpu("limits.cu", O3, 0);
    let kept = gpu.alloc::<f32>(25).unwrap();
    let freed = gpu.alloc::<f32>(7).unwrap();
    gpu.free(freed).unwrap();
    let leaks = gpu.device.release(1);
    assert_eq!(leaks.len(), 1, "{leaks:?}");
    assert_eq!((leaks[0].address, leaks[0].bytes), (kept, 100));
    assert!(leaks[0].label.contains("allocation 1"), "{leaks:?}");
}

#[test]
fn frees_and_copies() {
    let mut gpu = gpu("limits.cu", O3, 0);
    let x = gpu.alloc::<f32>(25).unwrap();
    let fails = |fault: Fault, words: &str| {
        assert_eq!(fault.code, Code::InvalidValue, "{fault}");
        assert!(fault.message.contains(words), "expected {words:?} in: {fault}");
    };
    fails(gpu.free(x + 4).unwrap_err(), "4 bytes before");
    fails(gpu.write(x, &[0.0f32; 26]).unwrap_err(), "past the end of allocation 1 (100 bytes at");
    fails(gpu.download::<f32>(x - 4, 1).unwrap_err(), "4 bytes before allocation 1");
    fails(gpu.device.free(2, x).unwrap_err(), "context");
    gpu.free(x).unwrap();
    fails(gpu.free(x).unwrap_err(), "freed already");
    fails(gpu.write(x, &[0.0f32]).unwrap_err(), "use after free");
}
