//! The emulator counts what each rung of the ladders says that it changed. The only launches of this process are the ones
//! that are counted.
#![cfg(feature = "cuda")]

mod counts;
mod rungs;

use std::sync::OnceLock;

use counts::{count_attentions, count_matmuls};
use handgrad::gpu::Gpu;
use rungs::HEAD_DIM;

fn gpu() -> &'static Gpu {
    static GPU: OnceLock<Gpu> = OnceLock::new();
    GPU.get_or_init(|| Gpu::emulator().unwrap())
}

#[test]
fn each_product_counts_what_it_claims() {
    let [m, n, k] = [256, 256, 64];
    let flops = (2 * m * n * k) as f64;
    let [naive, coalesced, shared, registers, vectors, tensor, pipelined] = count_matmuls(gpu(), [m, n, k]);
    for plain in [naive, coalesced, shared, registers, vectors] {
        assert_eq!((plain.float32_flops, plain.tensor_flops), (flops, 0.0));
    }
    assert!(naive.sectors > 6.0 * coalesced.sectors, "{naive:?} {coalesced:?}");
    assert!(naive.sectors_ideal < 0.2 * naive.sectors && coalesced.sectors_ideal == coalesced.sectors, "{naive:?}");
    assert!(coalesced.sectors > 10.0 * shared.sectors, "{coalesced:?} {shared:?}");
    assert!(shared.sectors > 2.0 * registers.sectors, "{shared:?} {registers:?}");
    assert!(shared.wavefronts > 7.0 * registers.wavefronts, "{shared:?} {registers:?}");
    assert!(shared.instructions > 2.0 * registers.instructions, "{shared:?} {registers:?}");
    assert!(registers.instructions > 1.3 * vectors.instructions, "{registers:?} {vectors:?}");
    assert!(vectors.sectors == registers.sectors && vectors.wavefronts <= registers.wavefronts, "{vectors:?}");
    assert_eq!((tensor.tensor_flops, tensor.float32_flops), (flops, 0.0));
    assert!(vectors.instructions > 4.0 * tensor.instructions, "{vectors:?} {tensor:?}");
    assert!(tensor.wavefronts > 4.0 * tensor.wavefronts_ideal && tensor.copies == 0.0, "{tensor:?}");
    assert_eq!((pipelined.tensor_flops, pipelined.sectors), (flops, tensor.sectors));
    assert!(pipelined.wavefronts == pipelined.wavefronts_ideal, "{pipelined:?}");
    assert!(pipelined.copies > 0.0 && pipelined.global_loads == 0.0, "{pipelined:?}");
    for no_conflicts in [shared, registers, vectors] {
        assert_eq!(no_conflicts.wavefronts, no_conflicts.wavefronts_ideal);
    }
}

#[test]
fn each_attention_counts_what_it_claims() {
    let (heads, tokens) = (2, 256);
    let [naive, tiled, online, tensor, pipelined] = count_attentions(gpu(), [1, tokens, heads, HEAD_DIM]);
    assert!(naive.sectors > 20.0 * tiled.sectors && naive.sectors_ideal < 0.4 * naive.sectors, "{naive:?} {tiled:?}");
    assert!(tiled.sectors > 2.0 * online.sectors, "{tiled:?} {online:?}");
    assert_eq!(online.bytes_touched, (4 * tokens * heads * HEAD_DIM * 4) as f64, "q, k, v and the output");
    assert!(tiled.bytes_touched > 4.0 * online.bytes_touched, "{tiled:?} {online:?}");
    assert!(online.instructions > 10.0 * tensor.instructions, "{online:?} {tensor:?}");
    assert!(tensor.tensor_flops > 0.0 && tensor.wavefronts > 5.0 * tensor.wavefronts_ideal, "{tensor:?}");
    assert_eq!((pipelined.tensor_flops, pipelined.sectors), (tensor.tensor_flops, tensor.sectors));
    assert!(pipelined.wavefronts == pipelined.wavefronts_ideal, "{pipelined:?}");
    assert!(pipelined.copies > 0.0 && pipelined.global_loads == 0.0, "{pipelined:?}");
    for no_conflicts in [tiled, online] {
        assert_eq!(no_conflicts.wavefronts, no_conflicts.wavefronts_ideal);
    }
}
