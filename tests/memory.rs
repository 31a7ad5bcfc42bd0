//! What lives when: activations are freed while backward walks, attention is linear in T. Counted by the allocator.
//!
//! One test, so that nothing else allocates meanwhile.

use handgrad::nn::{ModelConfig, Transformer};
use handgrad::ops;
use handgrad::{DType, Tape, Tensor, Var};
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

struct Counting;

static LIVE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call goes on to the system's allocator with the same arguments; only numbers are kept besides.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let live = LIVE.fetch_add(layout.size(), Ordering::Relaxed) + layout.size();
        PEAK.fetch_max(live, Ordering::Relaxed);
        // SAFETY: the caller's promises about `layout` are those that System asks for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: `pointer` came from `alloc` above, hence from System, with this layout.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn live() -> usize {
    LIVE.load(Ordering::Relaxed)
}

/// The identity, whose backward notes how many bytes live when the walk passes it.
fn probe(tape: &mut Tape, x: &Var, notes: &Arc<Mutex<Vec<usize>>>) -> Var {
    let notes = notes.clone();
    tape.record(&[x], x.value().clone(), move |d_y, sink| {
        notes.lock().unwrap().push(live());
        sink.add(0, d_y)
    })
}

/// Live bytes after forward and then at every block, from the last to the first.
fn live_during_backward() -> (usize, Vec<usize>) {
    let config = ModelConfig { n_layer: 8, max_seq_len: 128, ..ModelConfig::chapter8(65) };
    let model = Transformer::new(&config, 0).unwrap();
    let ids = Tensor::zeros(&[4, 128], DType::U32);
    let notes = Arc::new(Mutex::new(vec![]));
    let before = live();
    let mut tape = Tape::new();
    let mut x = model.embed_tokens.forward(&mut tape, &ids).unwrap();
    for layer in &model.layers {
        x = probe(&mut tape, &x, &notes);
        x = layer.forward(&mut tape, &x, &mut []).unwrap();
    }
    let logits = model.logits(&mut tape, &x).unwrap();
    drop(x);
    let loss = ops::cross_entropy(&mut tape, &logits, &ids, ops::IGNORE_INDEX).unwrap();
    drop(logits);
    let after_forward = live() - before;
    tape.backward(&loss).unwrap();
    let notes = notes.lock().unwrap();
    (after_forward, notes.iter().map(|live| live - before).collect())
}

/// Peak bytes of attention, forward and backward, beyond its inputs.
fn attention_peak(t: usize) -> usize {
    let x = Tensor::full(&[1, t, 2, 32], 0.1, DType::F32);
    let before = live();
    PEAK.store(before, Ordering::Relaxed);
    let mut tape = Tape::new();
    let (q, k, v) = (tape.leaf("q", &x), tape.leaf("k", &x), tape.leaf("v", &x));
    let out = ops::attention(&mut tape, &q, &k, &v, true).unwrap();
    tape.backward_from(&[(&out, x.clone())]).unwrap();
    PEAK.load(Ordering::Relaxed) - before
}

#[test]
fn activations_are_freed_and_attention_is_linear() {
    live_during_backward(); // threads and their buffers come to life
    let (after_forward, during) = live_during_backward();
    println!("{after_forward} bytes after forward, then {during:?}");
    assert_eq!(during.len(), 8);
    assert!(during.windows(2).all(|pair| pair[1] < pair[0]), "falls at every block: {during:?}");
    assert!(during[0] < after_forward);
    assert!(during[7] < after_forward / 3, "the first block sees a third of the peak at most: {during:?}");

    attention_peak(4096);
    let peaks = [1024, 2048, 4096].map(attention_peak);
    println!("attention peaks at T = 1024, 2048, 4096: {peaks:?}");
    let bytes_of_scores = 4096 * 4096 * 4;
    assert!(peaks[2] < bytes_of_scores / 4, "{peaks:?}");
    assert!(peaks[1] < peaks[0] * 5 / 2 && peaks[2] < peaks[1] * 5 / 2, "doubling T doubles the peak: {peaks:?}");
}
