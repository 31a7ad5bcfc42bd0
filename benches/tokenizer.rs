//! Byte-pair encoding and training, and encoding by the `bpe` crate on the same pieces.
//!
//!     cargo bench --bench tokenizer
//!     cargo bench --bench tokenizer -- --once TEXT TOKENIZER.json
//!
//! The first measures the project's own sources with criterion and prints MB/s (10⁶ bytes). The second measures one
//! text once, in processor time, which counts what this program did and not what others did meanwhile;
//! `scripts/tokenizer_peers.py` calls it beside tiktoken and Hugging Face's tokenizers.

use bpe::byte_pair_encoding::BytePairEncoding;
use criterion::{Criterion, Throughput};
use handgrad::data::Corpus;
use handgrad::formats::tokenizer_json;
use handgrad::tokenizer::bpe::split;
use handgrad::tokenizer::bpe::train::BpeTrainer;
use handgrad::tokenizer::{BpeTokenizer, SpecialText, Tokenizer};
use std::hint::black_box;
use std::path::Path;
use std::time::Instant;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).filter(|arg| arg != "--bench").collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["--once", text, tokenizer] => once(Path::new(text), Path::new(tokenizer)),
        _ => {
            let mut criterion = Criterion::default().configure_from_args().sample_size(10);
            with_criterion(&mut criterion);
            criterion.final_summary();
        }
    }
}

fn with_criterion(criterion: &mut Criterion) {
    let documents = Corpus::builtin().documents;
    let text = documents.concat();
    let train = || BpeTrainer::new(4096).texts(documents.iter().map(String::as_str)).expect("a vocabulary of 4096");
    let tokenizer = train();
    let peer = peer_of(&tokenizer);
    let mut group = criterion.benchmark_group("byte pairs");
    group.throughput(Throughput::Bytes(text.len() as u64));
    group.bench_function("encode", |b| b.iter(|| ours(&tokenizer, &text)));
    group.bench_function("encode, bpe crate", |b| b.iter(|| theirs(&peer, &tokenizer, &text)));
    group.bench_function("train 4096", |b| b.iter(train));
    group.finish();
    report(&tokenizer, &peer, &text, Instant::now, |start| start.elapsed().as_secs_f64());
}

fn once(text: &Path, tokenizer: &Path) {
    let text = std::fs::read_to_string(text).expect("a text in UTF-8");
    let Tokenizer::Bpe(tokenizer) = tokenizer_json::read(tokenizer).expect("a tokenizer.json") else {
        panic!("expected byte pairs");
    };
    let peer = peer_of(&tokenizer);
    report(&tokenizer, &peer, &text, processor_seconds, |start| processor_seconds() - start);
}

/// Prints MB/s of both, as the best of three, and whether they agree on how many tokens there are.
fn report<T>(tokenizer: &BpeTokenizer, peer: &BytePairEncoding, text: &str, now: fn() -> T, since: fn(T) -> f64) {
    let best = |call: &dyn Fn() -> usize| {
        let mut tokens = 0;
        let seconds = (0..3).map(|_| {
            let start = now();
            tokens = call();
            since(start)
        });
        let seconds = seconds.fold(f64::INFINITY, f64::min);
        (text.len() as f64 / 1e6 / seconds, tokens)
    };
    let (speed, tokens) = best(&|| ours(tokenizer, text));
    println!("handgrad encode: {speed:.1} MB/s, one thread, {tokens} tokens");
    let (speed, others) = best(&|| theirs(peer, tokenizer, text));
    println!("bpe crate: {speed:.1} MB/s, one thread, pieces by handgrad");
    assert_eq!(tokens, others, "tokens of the bpe crate");
}

fn ours(tokenizer: &BpeTokenizer, text: &str) -> usize {
    black_box(tokenizer.encode(text, SpecialText::Text).expect("any text can be encoded")).len()
}

/// The crate has no pre-tokenizer of its own.
fn theirs(peer: &BytePairEncoding, tokenizer: &BpeTokenizer, text: &str) -> usize {
    let mut ids = Vec::with_capacity(text.len() / 3);
    for piece in split::pieces(&tokenizer.parts().splits, text).expect("a known pattern") {
        ids.extend(peer.encode_via_backtracking(piece.as_bytes()));
    }
    black_box(ids).len()
}

fn peer_of(tokenizer: &BpeTokenizer) -> BytePairEncoding {
    // Any factor that keeps the hashes of all tokens apart will do; the crate checks it.
    BytePairEncoding::from_dictionary(tokenizer.parts().tokens.iter().flatten().cloned(), Some(0x9E37_79B9_7F4A_7C15))
}

/// What this thread has computed so far (Linux).
fn processor_seconds() -> f64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").expect("a Linux system");
    text.split(' ').next().and_then(|ns| ns.parse::<f64>().ok()).expect("nanoseconds") / 1e9
}
