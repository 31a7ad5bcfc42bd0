//! Every operator on a card, in f32 and bf16, forward and backward, against f64 on the CPU. `HANDGRAD_TEST_DEVICE` names the
//! device: the emulator unless it says `cuda` or `cuda:N`; `HANDGRAD_TEST_OPS` the operators, such as `matmul,linear`, and
//! `HANDGRAD_TEST_SEED` the numbers that are drawn.
#![cfg(feature = "cuda")]

use handgrad::ops::cases::{Use, cases};
use handgrad::ops::check::check;
use handgrad::{DType, Device};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

fn device() -> Device {
    Device::open(&std::env::var("HANDGRAD_TEST_DEVICE").unwrap_or("emulator".to_string())).unwrap()
}

fn check_all(dtype: DType) {
    let variable = |name: &str| std::env::var(name).ok();
    let seed = variable("HANDGRAD_TEST_SEED").map_or_else(rand::random, |seed| seed.parse().expect("a number"));
    println!("HANDGRAD_TEST_SEED={seed}");
    let ops = variable("HANDGRAD_TEST_OPS");
    let wanted = |op: &str| ops.as_ref().is_none_or(|ops| ops.split(',').any(|wanted| wanted == op));
    let (device, mut failures, mut ran) = (device(), vec![], 0);
    let usable = |usage: Use| matches!(usage, Use::Check | Use::Edge | Use::Forward);
    for case in cases().iter().filter(|case| usable(case.usage) && case.dtypes.contains(&dtype) && wanted(case.op)) {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let place = format!("{} {}", case.op, case.label);
        ran += 1;
        match check(case, &device, dtype, &mut rng) {
            Ok(worst) if worst.passes() => {}
            Ok(worst) => failures.push(format!("{place}: {:.2} of what is allowed, {}", worst.share, worst.place)),
            Err(error) => failures.push(format!("{place}: {error:#}")),
        }
    }
    assert!(ran > 0 || dtype == DType::Bf16, "no case of {ops:?}"); // AdamW has none in bf16
    assert!(failures.is_empty(), "{} failures:\n{}", failures.len(), failures.join("\n"));
    let pool = device.gpu().unwrap().pool().unwrap();
    println!("{pool:?}");
}

#[test]
fn f32_against_f64() {
    check_all(DType::F32);
}

#[test]
fn bf16_against_f64() {
    check_all(DType::Bf16);
}
