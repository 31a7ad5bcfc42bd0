//! Kernels of a few lines of PTX that give one value a thread.

use cuda_emulator::device::Options;
use cuda_emulator::fault::Fault;

use super::gpu::{Arg, Gpu, Shape, shape};

/// A kernel `k(out)` around a body. `%rd1` is the address of the thread's own word, `%r1` its index in the block, `%r2` what
/// is stored there in the end.
pub fn kernel(declarations: &str, body: &str) -> String {
    format!(
        ".version 8.0
.target sm_80
.address_size 64
{declarations}
.visible .entry k(.param .u64 k_param_0)
{{
    .reg .pred %p<20>;
    .reg .b16 %rs<20>;
    .reg .b32 %r<60>;
    .reg .f32 %f<20>;
    .reg .b64 %rd<40>;
    .shared .align 16 .b8 smem[4096];
    .local .align 8 .b8 depot[64];
    ld.param.u64 %rd1, [k_param_0];
    mov.u32 %r1, %tid.x;
    mul.wide.u32 %rd2, %r1, 4;
    add.s64 %rd1, %rd1, %rd2;
    mov.u32 %r2, 0;
{body}
    st.global.u32 [%rd1], %r2;
    ret;
}}
"
    )
}

pub fn run_shape(ptx: &str, shape: Shape, options: Options) -> Result<Vec<u32>, Fault> {
    let mut gpu = Gpu::with(ptx, options)?;
    let threads = shape.block.iter().product::<u32>() as usize;
    let out = gpu.upload(&vec![0xdead_beefu32; threads])?;
    gpu.launch("k", shape, &[Arg::Pointer(out)])?;
    gpu.download(out, threads)
}

/// One block, under several orders of warps, which must agree.
pub fn run(body: &str, threads: usize) -> Result<Vec<u32>, Fault> {
    let ptx = kernel("", body);
    let first = run_shape(&ptx, shape(1, threads), Options::default())?;
    for seed in 1..6 {
        let again = run_shape(&ptx, shape(1, threads), Options { seed, ..Options::default() })?;
        assert_eq!(first, again, "seed {seed}");
    }
    Ok(first)
}

pub fn fault(body: &str, threads: usize) -> Fault {
    run(body, threads).expect_err("expected a finding")
}
