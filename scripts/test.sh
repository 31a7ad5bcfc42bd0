#!/usr/bin/env bash
# Everything that must hold: formatting, lints, all tests, documentation; with CUDA, and without as far as lints go. The
# kernels and the emulator's tests need nvcc: where none is found, scripts/setup_nvcc.sh fetches one into .cuda/ first.
set -euo pipefail
cd "$(dirname "$0")/.."
export RUST_BACKTRACE=0
scripts/setup_nvcc.sh
cargo fmt --check --all
cargo clippy --package handgrad -- -D warnings # without CUDA
cargo clippy --workspace --all-targets --all-features -- -D warnings
cargo test --workspace --all-features
# The way out for drivers older than 580: a few kernels by the compiler of CUDA 12.9.
scripts/setup_nvcc.sh 12.9
cargo test --package handgrad --all-features --test toolkit_12 -- --ignored
RUSTDOCFLAGS="-D warnings" cargo doc --workspace --all-features --no-deps --quiet
