#!/usr/bin/env bash
# Installs nvcc, NVIDIA's CUDA compiler, into .cuda/ (ignored by git; about 300 MB) from the Python package index. Needs
# no card, no driver and no root, and changes nothing outside .cuda/.
#
#   scripts/setup_nvcc.sh            does nothing where an nvcc of release 13 or newer is found: in $NVCC,
#                                    $CUDA_HOME/bin, $CUDA_PATH/bin, on the PATH, or in .cuda/bin
#   scripts/setup_nvcc.sh --force    installs anew
#   scripts/setup_nvcc.sh 12.9       installs the compiler of CUDA 12.9 into .cuda/12.9/ (about 150 MB), for drivers older
#                                    than 580: NVCC=$PWD/.cuda/12.9/bin/nvcc cargo build --features cuda
#
# Prints the compiler's path. .cuda/ is laid out like any toolkit, so CUDA_HOME=.cuda works too. The packages of 12.9 have
# NVIDIA's compiler as a library, its ptxas and its headers, but no nvcc: scripts/nvcc12.py stands in for it.
set -euo pipefail

wanted=13
packages=(nvidia-cuda-nvcc nvidia-cuda-crt nvidia-nvvm nvidia-cuda-runtime nvidia-cuda-cccl)

fail() {
    echo "setup_nvcc.sh: $1" >&2
    exit 1
}

# The release of an nvcc, such as 13.0; nothing where it does not run.
release() {
    [ -x "$1" ] && "$1" --version 2>/dev/null | sed -n 's/.*release \([0-9]*\.[0-9]*\).*/\1/p'
}

new_enough() {
    local found
    found=$(release "$1") || return 1
    [ -n "$found" ] && [ "${found%%.*}" -ge "$wanted" ]
}

# nvcc runs the host's compiler as its preprocessor.
works() {
    local scratch status=0
    scratch=$(mktemp -d)
    echo '__global__ void kernel(float *x) { x[threadIdx.x] = 1.0f; }' > "$scratch/probe.cu"
    "$1" -ptx -arch=compute_80 "$scratch/probe.cu" -o "$scratch/probe.ptx" > "$scratch/log" 2>&1 || status=$?
    problem=$(grep . "$scratch/log" | head -n 1) || true
    rm -rf "$scratch"
    return "$status"
}

# A pip to call: the system's, or one that a virtual environment brings along.
find_pip() {
    if python3 -m pip --version > /dev/null 2>&1; then
        pip=(python3 -m pip)
    elif python3 -m venv "$partial/venv" > /dev/null 2>&1 && "$partial/venv/bin/python" -m pip --version > /dev/null 2>&1; then
        pip=("$partial/venv/bin/python" -m pip)
    else
        fail "python3 has neither pip nor a venv that brings it: install python3-pip or python3-venv"
    fi
}

force=no
older=
for argument in "$@"; do
    case "$argument" in
        --force) force=yes ;;
        12.9) older=12.9 ;;
        *) fail "argument \"$argument\": expected --force, 12.9 or none" ;;
    esac
done

cd "$(dirname "$0")/.."
target=$PWD/.cuda${older:+/$older}

# Whether the compiler that is to be here is: of the release that was asked for, or new enough.
installed() {
    if [ -n "$older" ]; then
        [ "$(release "$target/bin/nvcc")" = "$older" ] && cmp --quiet scripts/nvcc12.py "$target/bin/nvcc"
    else
        new_enough "$target/bin/nvcc"
    fi
}

if [ "$force" = no ] && [ -n "$older" ]; then
    if installed; then
        echo "$target/bin/nvcc"
        exit 0
    fi
elif [ "$force" = no ]; then
    [ -z "${NVCC-}" ] || [ -n "$(release "$NVCC")" ] || fail "NVCC=$NVCC is not an nvcc that runs"
    for candidate in "${NVCC-}" "${CUDA_HOME:+$CUDA_HOME/bin/nvcc}" "${CUDA_PATH:+$CUDA_PATH/bin/nvcc}" \
        "$(command -v nvcc || true)" "$target/bin/nvcc"; do
        if [ -n "$candidate" ] && new_enough "$candidate"; then
            echo "$candidate"
            exit 0
        fi
    done
fi

command -v python3 > /dev/null || fail "python3 is not on the PATH: it is needed to fetch the packages"

# One run at a time, where the system can lock. What an interrupted run left is cleared.
mkdir -p "$target"
if command -v flock > /dev/null; then
    exec 9> "$target/lock"
    flock 9
    if [ "$force" = no ] && installed; then # another run finished meanwhile
        echo "$target/bin/nvcc"
        exit 0
    fi
fi
partial=$target/partial
rm -rf "$partial"
mkdir "$partial"
trap 'rm -rf "$partial"' EXIT
trap 'exit 130' INT TERM HUP

find_pip
log=$partial/log
# Settings in the environment, not as options: an older pip ignores those it does not know.
export PIP_USER=0 PIP_NO_INPUT=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
if [ -n "$older" ]; then
    # Of CUDA 13 only fatbinary, which packs machine code of any release.
    wheels=("nvidia-cuda-nvcc-cu12==$older.*" "nvidia-cuda-nvrtc-cu12==$older.*" "nvidia-cuda-runtime-cu12==$older.*"
        "nvidia-cuda-nvcc==$wanted.0.*")
else
    wheels=("${packages[@]/%/==$wanted.0.*}")
fi
if ! "${pip[@]}" install --quiet --no-deps --only-binary=:all: --target "$partial/site" "${wheels[@]}" > "$log" 2>&1; then
    cause=$(grep -i error "$log" | tail -n 1) || true
    fail "pip could not install ${wheels[0]} and its parts (no network?): ${cause:-$(tail -n 1 "$log")}"
fi

site=$partial/site/nvidia
if [ -n "$older" ]; then
    toolkit=$partial/toolkit
    mkdir -p "$toolkit/bin"
    cp scripts/nvcc12.py "$toolkit/bin/nvcc"
    mv "$site/cuda_nvcc/bin/ptxas" "$site/cu$wanted/bin/fatbinary" "$toolkit/bin/"
    rm -f "$site"/cuda_nvrtc/lib/*.alt.*
    mv "$site/cuda_nvrtc/lib" "$site/cuda_runtime/include" "$toolkit/"
    # NVRTC knows no header of the host's.
    mkdir "$toolkit/include/nvrtc"
    echo '#pragma once
using int8_t = signed char;
using int16_t = short;
using int32_t = int;
using int64_t = long long;
using intptr_t = long long;
using uint8_t = unsigned char;
using uint16_t = unsigned short;
using uint32_t = unsigned int;
using uint64_t = unsigned long long;
using uintptr_t = unsigned long long;' > "$toolkit/include/nvrtc/cstdint"
    echo '#pragma once
#define INFINITY __int_as_float(0x7f800000)
#define NAN __int_as_float(0x7fffffff)' > "$toolkit/include/nvrtc/math.h"
    chmod +x "$toolkit"/bin/*
else
    toolkit=$site/cu$wanted
    [ -e "$toolkit/bin/nvcc" ] || fail "the packages hold no nvidia/cu$wanted/bin/nvcc: their layout has changed"
    chmod +x "$toolkit"/bin/* "$toolkit"/nvvm/bin/*
fi
works "$toolkit/bin/nvcc" || fail "nvcc does not compile here (it needs a host compiler: g++): $problem"

# bin comes last: where bin/nvcc is, the rest is.
rm -rf "$target/bin"
for part in "$toolkit"/*; do
    name=$(basename "$part")
    [ "$name" = bin ] && continue
    rm -rf "${target:?}/$name"
    mv "$part" "$target/$name"
done
mv "$toolkit/bin" "$target/bin"
echo "$target/bin/nvcc"
