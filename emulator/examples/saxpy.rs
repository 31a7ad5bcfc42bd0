//! An ordinary cudarc program: y = 2x + y on the first device. With an argument, the kernel is told of that many more
//! elements than there are.

use cudarc::driver::{CudaContext, LaunchConfig, PushKernelArg};
use cudarc::nvrtc::Ptx;

pub fn run(excess: i32) -> Result<(), Box<dyn std::error::Error>> {
    let context = CudaContext::new(0)?;
    println!("{}", context.name()?);
    let stream = context.default_stream();
    let module = context.load_module(Ptx::from_src(include_str!("../tests/saxpy.ptx")))?;
    let saxpy = module.load_function("saxpy")?;

    let x: Vec<f32> = (0..1000).map(|i| i as f32).collect();
    let x = stream.clone_htod(&x)?;
    let mut y = stream.clone_htod(&[1.0f32; 1000])?;
    let (n, a) = (1000 + excess, 2.0f32);
    let mut launch = stream.launch_builder(&saxpy);
    launch.arg(&n).arg(&a).arg(&x).arg(&mut y);
    // SAFETY: the arguments are those of the kernel; an excess is what the emulator is asked to notice.
    unsafe { launch.launch(LaunchConfig::for_num_elems(n as u32)) }?;
    let y = stream.clone_dtoh(&y)?;
    assert!(y.iter().enumerate().all(|(i, &y)| y == 2.0 * i as f32 + 1.0));
    println!("y[999] = {}", y[999]);
    Ok(())
}

#[allow(dead_code)] // tests/driver_cudarc.rs calls `run`
fn main() -> Result<(), Box<dyn std::error::Error>> {
    run(std::env::args().nth(1).map_or(Ok(0), |text| text.parse())?)
}
