#!/usr/bin/env bash
# Everything that must hold, on a machine with Rust alone: formatting, lints, all tests, documentation.
set -euo pipefail
cd "$(dirname "$0")/.."
export RUST_BACKTRACE=0
cargo fmt --check
cargo clippy --all-targets -- -D warnings
cargo test
RUSTDOCFLAGS="-D warnings" cargo doc --no-deps --quiet
