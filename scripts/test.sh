#!/usr/bin/env bash
# Everything that must hold: formatting, lints, all tests, documentation; with CUDA, and without as far as lints go. The
# kernels and the emulator's tests need nvcc: where none is found, scripts/setup_nvcc.sh fetches one into .cuda/ first.
set -euo pipefail
cd "$(dirname "$0")/.."
export RUST_BACKTRACE=0
scripts/setup_nvcc.sh
scripts/setup_nvcc.sh 12.9 # for tests/toolkit_12.rs: the way out for drivers older than 580
cargo fmt --check --all
cargo clippy --package handgrad -- -D warnings # without CUDA
cargo clippy --workspace --all-targets --all-features -- -D warnings
cargo test --workspace --all-features
RUSTDOCFLAGS="-D warnings" cargo doc --workspace --all-features --no-deps --quiet
