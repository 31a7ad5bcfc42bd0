#!/usr/bin/env bash
# Everything that must hold: formatting, lints, all tests, documentation. The emulator's tests compile kernels: where no
# nvcc is found, scripts/setup_nvcc.sh fetches one into .cuda/ first.
set -euo pipefail
cd "$(dirname "$0")/.."
export RUST_BACKTRACE=0
scripts/setup_nvcc.sh
cargo fmt --check --all
cargo clippy --workspace --all-targets -- -D warnings
cargo test --workspace
RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --quiet
