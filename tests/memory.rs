//! What lives when: activations are freed while backward walks, attention is linear in T, and evaluation and generation take
//! what is predicted for them. Counted by the allocator.
//!
//! One test, so that nothing else allocates meanwhile.

use handgrad::data::whole_batches;
use handgrad::generate::{Request, Sampler, generate_batch};
use handgrad::nn::{ModelConfig, Transformer};
use handgrad::ops;
use handgrad::train::memory::inference;
use handgrad::train::trainer::mean_loss;
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

/// Chapter 8's model, one with its peak in the feed-forward, one in attention, one at the head, and the classic one.
fn models() -> Vec<Transformer> {
    let base = ModelConfig { n_layer: 2, max_seq_len: 256, ..ModelConfig::chapter8(65) };
    let configs = [
        base.clone(),
        ModelConfig { n_ff: 1024, ..base.clone() },
        ModelConfig { n_head: 8, n_kv_head: 8, head_dim: 64, n_ff: 64, ..base.clone() },
        ModelConfig { vocab_size: 5000, qk_norm: false, tie_embeddings: true, ..base.clone() },
        ModelConfig { n_layer: 2, max_seq_len: 256, ..ModelConfig::classic(65) },
    ];
    configs.iter().map(|config| Transformer::new(config, 1).unwrap()).collect()
}

/// Peak bytes of `work` beyond what lives before it.
fn peak(work: impl FnOnce()) -> f64 {
    let before = live();
    PEAK.store(before, Ordering::Relaxed);
    work();
    (PEAK.load(Ordering::Relaxed) - before) as f64
}

/// What runs before evaluation and generation believes these numbers, so they are not below what is taken.
fn inference_takes_what_is_predicted() {
    let tokens: Vec<u32> = (0..16 * 256 + 1).map(|i| i * i % 61).collect();
    for model in models() {
        let evaluate = || {
            let batches = whole_batches(&tokens, 16, 256).unwrap();
            mean_loss(&model, batches, &|| false).unwrap();
        };
        evaluate(); // threads and their buffers come to life
        let model = model.clone();
        let found = peak(evaluate);
        holds("evaluation", &model.config, inference::evaluation(&model.config, 16, 256, DType::F32, false), found);
        for use_cache in [true, false] {
            let requests = [40, 200].map(|length| Request {
                prompt: &tokens[..length],
                max_new: 30,
                end_of_text: &[],
                vocab_size: 61,
                use_cache,
            });
            let mut sampler = Sampler::new(1.0, 0.9, 1).unwrap();
            let found = peak(|| {
                generate_batch(&model, &requests, &mut sampler, &mut |_, _| Ok(true)).unwrap();
            });
            let predicted = inference::generation(&model.config, &requests, DType::F32, false);
            holds(if use_cache { "generation" } else { "generation without a cache" }, &model.config, predicted, found);
        }
    }
}

fn holds(what: &str, config: &ModelConfig, predicted: f64, found: f64) {
    println!("{what}: predicted {predicted}, found {found}, {:+.1}%", 100.0 * (predicted / found - 1.0));
    assert!(predicted >= 0.98 * found, "{what} of {config:?}: predicted {predicted}, found {found}");
    assert!(predicted <= 1.6 * found, "{what} of {config:?}: predicted {predicted}, found {found}");
}

#[test]
fn memory_is_what_it_should_be() {
    activations_are_freed_and_attention_is_linear();
    inference_takes_what_is_predicted();
}

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
