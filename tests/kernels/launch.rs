//! The launch layer: parameter lists against the compiled kernels, refusals, memory.

use crate::common::gpu;
use cuda_emulator::ptx;
use cuda_emulator::ptx::ast::Type;
use handgrad::gpu::kernels::{FAMILIES, scale};
use handgrad::gpu::modules::{COMPILED, CompiledFile};
use handgrad::gpu::{Arg, Config, Kernel, LaunchError, Param};

/// The kernel of a compiled entry: the one with the longest name that is the entry's up to an underscore.
fn kernel_of(file: &CompiledFile, entry: &str) -> Option<&'static Kernel> {
    let all = FAMILIES.iter().flat_map(|family| family.kernels.iter().copied());
    let fits = |kernel: &&Kernel| {
        let rest = entry.strip_prefix(kernel.name);
        kernel.file == file.name && rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('_'))
    };
    all.filter(fits).max_by_key(|kernel| kernel.name.len())
}

fn width(param: Param) -> Type {
    match param {
        Param::Pointer | Param::I64 | Param::U64 => Type::U64,
        Param::I32 | Param::U32 => Type::U32,
        Param::F32 => Type::F32,
    }
}

#[test]
fn every_parameter_list_is_that_of_the_compiled_kernel() {
    let mut found = std::collections::HashSet::new();
    for file in COMPILED.files {
        for function in ptx::parse(file.ptx).unwrap().functions.iter().filter(|function| function.entry) {
            let kernel = kernel_of(file, &function.name);
            let kernel = kernel.unwrap_or_else(|| panic!("{}: {} is in no list of kernels", file.name, function.name));
            found.insert((kernel.file, kernel.name));
            let compiled: Vec<Type> = function.params.iter().map(|param| param.ty).collect();
            let listed: Vec<Type> = kernel.params.iter().map(|&param| width(param)).collect();
            assert_eq!(compiled, listed, "{}: {}: compiled (left) and listed parameters", file.name, function.name);
            for (i, &param) in kernel.params.iter().enumerate() {
                let pointer = is_used_as_address(file.ptx, &function.params[i].name);
                assert!(
                    !pointer || param == Param::Pointer,
                    "{}: parameter {i} is a pointer, not {param:?}",
                    function.name
                );
            }
        }
    }
    for kernel in FAMILIES.iter().flat_map(|family| family.kernels) {
        assert!(found.contains(&(kernel.file, kernel.name)), "kernels/{}.cu has no {}", kernel.file, kernel.name);
    }
}

/// Whether the register that a parameter is loaded into becomes a global address. (Those that only inline PTX uses do not.)
fn is_used_as_address(text: &str, parameter: &str) -> bool {
    let load = text.lines().find(|line| line.contains("ld.param") && line.contains(&format!("[{parameter}]")));
    let Some(register) = load.and_then(|line| line.split_whitespace().nth(1)) else { return false };
    let body = text.split(&format!("[{parameter}]")).nth(1).unwrap_or_default();
    let body = body.split(".visible .entry").next().unwrap_or_default();
    let register = register.trim_end_matches(',');
    body.lines().any(|line| line.contains("cvta.to.global") && line.trim_end().ends_with(&format!(" {register};")))
}

const SCALE: &Kernel = scale::KERNELS[0];
const ARGS: [Arg; 4] = [Arg::Pointer(0), Arg::Pointer(0), Arg::F32(1.0), Arg::I64(0)];

fn config(grid: [u32; 3], threads: u32, shared_bytes: usize) -> Config {
    Config { grid, block: [threads, 1, 1], shared_bytes }
}

#[test]
fn a_launch_beyond_the_card_is_refused_with_request_and_limit() {
    let (gpu, limits) = (gpu(), gpu().limits());
    let most = limits.shared_memory_optin;
    gpu.launch(SCALE, "f32", config([1, 1, 1], 256, most), &ARGS).unwrap();
    for requested in [most + 1, usize::MAX] {
        let error = gpu.launch(SCALE, "f32", config([1, 1, 1], 256, requested), &ARGS).unwrap_err();
        assert_eq!(error, LaunchError::SharedMemory { kernel: "scale_f32".to_string(), requested, limit: most });
        assert!(
            error.to_string().contains(&format!("{requested} bytes")) && error.to_string().contains(&most.to_string())
        );
    }
    for threads in [0, 257, u32::MAX] {
        let error = gpu.launch(SCALE, "f32", config([1, 1, 1], threads, 0), &ARGS).unwrap_err();
        assert_eq!(error, LaunchError::Threads { kernel: "scale_f32".to_string(), requested: threads, limit: 256 });
    }
    for (axis, grid) in [('y', [1, 65_536, 1]), ('z', [1, 1, 65_536]), ('x', [1 << 31, 1, 1])] {
        let error = gpu.launch(SCALE, "f32", config(grid, 256, 0), &ARGS).unwrap_err();
        assert!(matches!(&error, LaunchError::Grid { axis: found, .. } if *found == axis), "{error}");
    }
    gpu.launch(SCALE, "f32", config([1, 0, 1], 256, 0), &ARGS).unwrap();
    gpu.launch(SCALE, "f32", config([1, 65_535, 1], 256, 0), &ARGS).unwrap();
    gpu.synchronize().unwrap();
}

#[test]
fn arguments_and_names_that_are_not_the_kernels() {
    let gpu = gpu();
    let one = config([1, 1, 1], 256, 0);
    let error = gpu.launch(SCALE, "f32", one, &ARGS[..3]).unwrap_err();
    let text = "scale_f32: found arguments (Pointer, Pointer, F32), expected (Pointer, Pointer, F32, I64)";
    assert_eq!(error.to_string(), text);
    let swapped = [ARGS[0], ARGS[1], ARGS[3], ARGS[2]];
    assert!(matches!(gpu.launch(SCALE, "f32", one, &swapped), Err(LaunchError::Arguments { .. })));
    let error = gpu.launch(SCALE, "f64", one, &ARGS).unwrap_err();
    assert_eq!(error, LaunchError::Unknown { file: "scale", kernel: "scale_f64".to_string() });
}

#[test]
fn an_allocation_that_does_not_fit_names_what_was_free_and_the_next_one_works() {
    let gpu = gpu();
    let (_, total) = gpu.memory().unwrap();
    match gpu.alloc::<f32>(1 << 44).err() {
        Some(LaunchError::OutOfMemory { requested, free, total: found }) => {
            assert_eq!((requested, found), (1 << 46, total));
            assert!(free <= total);
        }
        other => panic!("{other:?}"),
    }
    assert!(matches!(gpu.alloc::<f32>(usize::MAX).err(), Some(LaunchError::Overflow { .. })));
    assert_eq!(gpu.upload(&[1.0f32, 2.0]).unwrap().download().unwrap(), [1.0, 2.0]);
    assert_eq!(gpu.zeros::<u32>(3).unwrap().download().unwrap(), [0; 3]);
}

#[test]
fn a_buffer_may_be_dropped_right_after_the_launch_that_reads_it() {
    let gpu = gpu();
    let mut y = gpu.alloc::<f32>(1000).unwrap();
    for round in 0..8 {
        let x = gpu.upload(&[round as f32; 1000]).unwrap();
        scale::scale(gpu, x.view(), &mut y.view_mut(), 2.0, 1000).unwrap();
    }
    assert_eq!(y.download().unwrap(), [14.0; 1000]);
}
