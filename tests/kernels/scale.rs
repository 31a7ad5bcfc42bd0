//! `kernels/scale.cu`.

use crate::common::*;
use half::bf16;
use handgrad::gpu::kernels::scale::{scale, scale_in_place};
use handgrad::gpu::{GpuFloat, LaunchError, View};
use rand_chacha::ChaCha8Rng;

fn check<E: GpuFloat>((n, offset): (usize, usize), rng: &mut ChaCha8Rng) {
    let gpu = gpu();
    let (data, c) = (normal::<E>(rng, n), -1.7f32);
    let expected: Vec<f64> = to_f64(&data).iter().map(|x| x * c as f64).collect();
    let naive: Vec<f64> = to_f32(&data).iter().map(|x| rounded::<E>(x * c) as f64).collect();
    let x = Input::new(gpu, &data, offset);
    let run = || {
        let mut y = Guarded::<E>::at(gpu, n, offset);
        scale(gpu, x.view(), &mut y.view_mut(), c, n).unwrap();
        y.download()
    };
    let found = run();
    within_budget("scale", &found, &expected, &naive, 2.0);
    same_bits("scale", &found, &run());

    let mut both = Guarded::holding(gpu, &data, offset);
    scale_in_place(gpu, &mut both.view_mut(), c, n).unwrap();
    same_bits("scale in place", &found, &both.download());
}

#[test]
fn against_f64() {
    let shapes = || (edges(&[8, 256, 1024, 2048]), 0usize..3);
    property("scale f32", 20, shapes(), check::<f32>);
    property("scale bf16", 20, shapes(), check::<bf16>);
}

#[test]
fn nothing_to_scale() {
    let mut y = Guarded::<f32>::new(gpu(), 0);
    scale(gpu(), gpu().alloc::<f32>(0).unwrap().view(), &mut y.view_mut(), 2.0, 0).unwrap();
    assert!(y.download().is_empty());
}

#[test]
fn bad_operands_are_refused() {
    let gpu = gpu();
    let x = gpu.upload(&[1.0f32; 8]).unwrap();
    let mut y = Guarded::<f32>::new(gpu, 8);
    let error = scale(gpu, x.view(), &mut y.view_mut(), 2.0, 9).unwrap_err();
    assert_eq!(error, LaunchError::TooSmall { kernel: "scale", operand: "x", found: 8, expected: 9 });
    let error = scale(gpu, x.range(0..0), &mut y.view_mut(), 2.0, 1).unwrap_err();
    assert!(matches!(error, LaunchError::TooSmall { operand: "x", found: 0, .. }), "{error}");
    let none = gpu.alloc::<f32>(0).unwrap();
    let error = scale(gpu, none.view(), &mut y.view_mut(), 2.0, 1).unwrap_err();
    assert!(matches!(error, LaunchError::Null { operand: "x", .. }), "{error}");
    // SAFETY: refused before anything is read.
    let odd = unsafe { View::<f32>::from_raw(x.view().address() + 2, 7) };
    let error = scale(gpu, odd, &mut y.view_mut(), 2.0, 7).unwrap_err();
    assert!(matches!(error, LaunchError::Misaligned { operand: "x", expected: 4, .. }), "{error}");
    let error = scale(gpu, x.view(), &mut y.view_mut(), 2.0, usize::MAX).unwrap_err();
    assert!(matches!(error, LaunchError::Overflow { .. }), "{error}");
}
