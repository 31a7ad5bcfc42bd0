//! What a launch refuses, each with what was found and what was expected; and memory.

use crate::common::*;
use handgrad::gpu::attention::{HEAD_DIMS, backward_passes, forward_grid};
use handgrad::gpu::{Grid, LaunchError};
use handgrad::launch::{Absent, Arg, F32, In, Int, Out, int};
use handgrad::ops::{self, cast};
use handgrad::{DType, Device, Tape, Tensor, Var};

/// `scale` of `x` into `y`, whose arguments these are.
fn scale_args<'a>(x: &'a Tensor, y: &'a Tensor) -> [Arg<'a>; 4] {
    [In(x), Out(y), F32(2.0), int(y.len())]
}

fn refused(kernel: &str, args: &[Arg]) -> LaunchError {
    gpu().launch(kernel, &Grid::blocks(1, 256), args).unwrap_err()
}

fn empty(shape: &[usize], dtype: DType) -> Tensor {
    Tensor::empty(shape, dtype, gpu()).unwrap()
}

/// The launch error below an operator's.
fn typed<T>(result: anyhow::Result<T>) -> LaunchError {
    match result {
        Ok(_) => panic!("expected an error"),
        Err(error) => error.downcast_ref::<LaunchError>().unwrap_or_else(|| panic!("{error:#}")).clone(),
    }
}

#[test]
fn arguments_and_names_that_are_not_the_kernels() {
    let (x, y) = (put(&[1.0; 8], &[8], DType::F32), empty(&[8], DType::F32));
    let args = scale_args(&x, &y);
    let error = refused("nonsense", &args);
    assert_eq!(error, LaunchError::Unknown { kernel: "nonsense_f32".to_string() });
    let grid = Grid::blocks(1, 256).variant("_long");
    let error = gpu().launch("scale", &grid, &args).unwrap_err();
    assert_eq!(error.to_string(), "scale_f32_long: found no compiled kernel of this name");

    let error = refused("scale", &args[..3]);
    let LaunchError::Arguments { kernel, found, expected } = &error else { panic!("{error}") };
    let both = "Tensor(f32 [8]), Tensor(f32 [8]), F32(2.0)";
    assert_eq!(
        (kernel.as_str(), found.as_str(), expected.as_str()),
        ("scale_f32", both, "Pointer, Pointer, F32, Bits64")
    );
    for wrong in [[args[0], args[1], args[3], args[2]], [args[0], args[2], args[1], args[3]]] {
        assert!(matches!(refused("scale", &wrong), LaunchError::Arguments { .. }));
    }
    let more = [&args[..], &[Int(0)]].concat();
    assert!(matches!(refused("scale", &more), LaunchError::Arguments { .. }));
}

#[test]
fn numbers_beyond_32_bits() {
    let (logits, losses) = (put(&[0.0; 8], &[2, 4], DType::F32), empty(&[2], DType::F32));
    let targets = ids(&[0, 1]);
    for ignored in [1 << 31, i64::MIN] {
        let error = refused("cross_entropy_forward", &[In(&logits), In(&targets), Out(&losses), int(4), Int(ignored)]);
        let LaunchError::Range { kernel, what, found, expected } = &error else { panic!("{error}") };
        assert_eq!((kernel.as_str(), what.as_str()), ("cross_entropy_forward_f32", "argument 4"));
        assert_eq!((found.as_str(), expected.as_str()), (ignored.to_string().as_str(), "at most 2147483647"));
    }
}

#[test]
fn tensors_that_do_not_fit() {
    let (x, y) = (put(&[1.0; 9], &[3, 3], DType::F32), empty(&[9], DType::F32));
    let name = gpu().name().to_string();
    let here = Tensor::zeros(&[9], DType::F32);
    let (kernel, argument) = ("scale_f32".to_string(), 0);
    let error = refused("scale", &scale_args(&here, &y));
    let (found, expected) = ("cpu".to_string(), name);
    assert_eq!(error, LaunchError::Device { kernel: kernel.clone(), argument, found, expected });

    let none = empty(&[0, 3], DType::F32);
    assert_eq!(refused("scale", &scale_args(&none, &y)), LaunchError::Null { kernel: kernel.clone(), argument });
    assert_eq!(refused("scale", &scale_args(&x, &none)), LaunchError::Null { kernel: kernel.clone(), argument: 1 });

    let window = x.rows(1..2).unwrap(); // 12 bytes from an aligned address
    let error = refused("scale", &scale_args(&window, &y));
    let LaunchError::Misaligned { argument: 0, address, expected: 16, .. } = error else { panic!("{error}") };
    assert_eq!(address % 16, 12);
    // The same rows are fit for an entry that reads them element by element; ids are read so by every kernel.
    let (gain, rows, rstd) = (put(&[1.0; 3], &[3], DType::F32), empty(&[1, 3], DType::F32), empty(&[1], DType::F32));
    let args = [In(&window), Absent, In(&gain), Absent, Out(&rows), Out(&rstd), int(1), int(3), F32(1e-5)];
    gpu().launch("rms_norm_forward", &Grid::blocks(1, 256).variant("_unaligned"), &args).unwrap();
    let error = gpu().launch("rms_norm_forward", &Grid::blocks(1, 256), &args).unwrap_err();
    assert!(matches!(error, LaunchError::Misaligned { argument: 0, expected: 16, .. }), "{error}");

    let shared = y.clone();
    assert_eq!(refused("scale", &scale_args(&x, &y)), LaunchError::Shared { kernel, argument: 1 });
    drop(shared);
    gpu().launch("scale", &Grid::blocks(1, 256), &scale_args(&x, &y)).unwrap();
}

#[test]
fn a_launch_beyond_the_card() {
    let (x, y) = (put(&[1.0; 8], &[8], DType::F32), empty(&[8], DType::F32));
    let (most, kernel) = (gpu().limits().shared_memory_optin, || "scale_f32".to_string());
    let launch = |grid: Grid| gpu().launch("scale", &grid, &scale_args(&x, &y));
    launch(Grid { shared_bytes: most, ..Grid::blocks(1, 256) }).unwrap();
    for requested in [most + 1, usize::MAX] {
        let error = launch(Grid { shared_bytes: requested, ..Grid::blocks(1, 256) }).unwrap_err();
        assert_eq!(error, LaunchError::SharedMemory { kernel: kernel(), requested, limit: most });
        let text = error.to_string();
        assert!(text.contains(&format!("{requested} bytes")) && text.contains(&most.to_string()), "{text}");
    }
    for threads in [0, 257, u32::MAX] {
        let error = launch(Grid { threads: [threads, 1, 1], ..Grid::blocks(1, 256) }).unwrap_err();
        assert_eq!(error, LaunchError::Threads { kernel: kernel(), requested: threads, limit: 256 });
    }
    for (axis, blocks) in [('y', [1, 65_536, 1]), ('z', [1, 1, 65_536]), ('x', [1 << 31, 1, 1])] {
        let error = launch(Grid { blocks, ..Grid::blocks(1, 256) }).unwrap_err();
        let LaunchError::Grid { axis: found, requested, limit, .. } = error else { panic!("{error}") };
        assert_eq!((found, requested, limit as usize), (axis, *blocks.iter().max().unwrap(), requested - 1));
    }
    launch(Grid { blocks: [1, 65_535, 1], ..Grid::blocks(1, 256) }).unwrap();
    gpu().synchronize().unwrap();
    assert_eq!(get(&y), [2.0; 8]);
    // An empty grid launches nothing, whatever else is wrong.
    launch(Grid { blocks: [1, 0, 1], threads: [0, 0, 0], shared_bytes: usize::MAX, variant: "_long" }).unwrap();
}

#[test]
fn a_head_dim_without_a_kernel() {
    let expected = HEAD_DIMS.map(|(dim, _)| dim).to_vec();
    let error = forward_grid(48, 2, 1, 1).unwrap_err();
    assert_eq!(error, LaunchError::HeadDim { kernel: "attention_forward", found: 48, expected: expected.clone() });
    assert!(error.to_string().contains("found head_dim 48, expected one of [32, 64, 96, 128]"), "{error}");
    assert!(matches!(backward_passes(40, 4), Err(LaunchError::HeadDim { kernel: "attention_backward", .. })));
    for dtype in BOTH {
        let q = put(&[0.0; 80], &[1, 1, 1, 80], dtype);
        let x = Var::constant(q.clone());
        let error = typed(ops::attention(&mut Tape::inference(), &x, &x, &x, true));
        assert_eq!(error, LaunchError::HeadDim { kernel: "attention_forward", found: 80, expected: expected.clone() });
        let error = typed(ops::attention_cached(&q, &q, &q, 1));
        assert_eq!(error, LaunchError::HeadDim { kernel: "attention_decode", found: 80, expected: expected.clone() });
    }
}

#[test]
fn an_allocation_that_does_not_fit_names_what_was_free_and_the_next_one_works() {
    let (_, total) = gpu().memory().unwrap();
    match typed(Tensor::empty(&[1 << 44], DType::F32, gpu())) {
        LaunchError::OutOfMemory { requested, free, total: found } => {
            assert_eq!((requested, found), (1 << 46, total));
            assert!(free <= total);
        }
        other => panic!("{other}"),
    }
    for shape in [&[usize::MAX][..], &[1 << 40, 1 << 40]] {
        let error = typed(Tensor::empty(shape, DType::F32, gpu()));
        assert_eq!(error, LaunchError::Overflow { shape: shape.to_vec() });
        assert!(matches!(typed(Tensor::zeros_on(shape, DType::F32, device())), LaunchError::Overflow { .. }));
    }
    assert_eq!(get(&put(&[1.0, 2.0], &[2], DType::F32)), [1.0, 2.0]);
    assert_eq!(get(&Tensor::zeros_on(&[3], DType::U32, device()).unwrap()), [0.0; 3]);
}

#[test]
fn a_tensor_may_be_dropped_right_after_the_launch_that_reads_it() {
    let y = empty(&[1000], DType::F32);
    for round in 0..8 {
        let x = put(&[f64::from(round); 1000], &[1000], DType::F32);
        gpu().launch("scale", &Grid::elementwise(1000, 4), &scale_args(&x, &y)).unwrap();
    }
    assert_eq!(get(&y), [14.0; 1000]);
}

/// What an operator refuses on a card before any launch.
#[test]
fn dtypes_and_devices_of_operators() {
    let (x, here) = (put(&[1.0; 4], &[4], DType::F32), Tensor::zeros(&[4], DType::F32));
    let add = |a: &Tensor, b: &Tensor| {
        let (a, b) = (Var::constant(a.clone()), Var::constant(b.clone()));
        ops::add(&mut Tape::inference(), &a, &b).unwrap_err().to_string()
    };
    let error = add(&x, &here);
    assert!(error.contains(&format!("found tensors on {} and cpu", gpu().name())), "{error}");
    let error = add(&x, &put(&[1.0; 4], &[4], DType::Bf16));
    assert!(error.contains("found dtypes f32 and bf16"), "{error}");
    let error = add(&ids(&[1; 4]), &ids(&[1; 4]));
    assert!(error.contains("found dtype u32, expected f32 or bf16"), "{error}");
    let error = cast(&ids(&[1; 4]), DType::F32).unwrap_err().to_string();
    assert!(error.contains("found u32 to f32"), "{error}");
    let error = Tensor::zeros(&[4], DType::F64).to(device()).unwrap_err().to_string();
    assert!(error.contains("found dtype f64"), "{error}");
    assert!(x.to(&Device::Cpu).unwrap().as_slice::<f32>().is_ok() && x.as_slice::<f32>().is_err());
}
