#!/usr/bin/env python3
"""Stands in for the nvcc of a 12.x toolkit, whose Python packages have all parts of it but nvcc itself.

scripts/setup_nvcc.sh 12.9 installs this as .cuda/12.9/bin/nvcc, beside the parts: NVRTC compiles to PTX, ptxas to machine
code, and fatbinary packs that. It takes what build/kernels.rs asks of nvcc, and no more:

    nvcc --version
    nvcc -std=c++17 -O3 -lineinfo -IDIR -ptx -arch=compute_80 FILE.cu -o FILE.ptx
    nvcc -fatbin -Xptxas -v -lineinfo -gencode arch=compute_80,code=[sm_80,sm_89] FILE.ptx -o FILE.fatbin
"""
import ctypes
import os
import re
import subprocess
import sys
import tempfile

TOP = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))

# In NVRTC all code is the device's.
ALWAYS = ["-default-device"]


def fail(message):
    sys.exit(f"nvcc12: {message}")


def nvrtc():
    # The library loads the second one by its bare name: it is there already.
    for name in sorted(os.listdir(f"{TOP}/lib")):
        if name.startswith("libnvrtc-builtins.so"):
            ctypes.CDLL(f"{TOP}/lib/{name}", mode=ctypes.RTLD_GLOBAL)
    return ctypes.CDLL(f"{TOP}/lib/libnvrtc.so.12")


def to_ptx(source, out, options):
    library, program, size = nvrtc(), ctypes.c_void_p(), ctypes.c_size_t()
    folders = [f"-I{folder}" for folder in (os.path.dirname(source) or ".", f"{TOP}/include/nvrtc", f"{TOP}/include")]
    options = [option.encode() for option in options + ALWAYS + folders]
    with open(source, "rb") as file:
        text = file.read()
    created = library.nvrtcCreateProgram(ctypes.byref(program), text, source.encode(), 0, None, None)
    if created != 0:
        fail(f"{source}: NVRTC error {created}")
    status = library.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*options))
    library.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value)
    library.nvrtcGetProgramLog(program, log)
    sys.stderr.write(log.value.decode(errors="replace"))
    if status != 0:
        fail(f"{source}: NVRTC error {status}")
    library.nvrtcGetPTXSize(program, ctypes.byref(size))
    ptx = ctypes.create_string_buffer(size.value)
    library.nvrtcGetPTX(program, ptx)
    with open(out, "wb") as file:
        file.write(ptx.value)


def run(*command):
    status = subprocess.run(command).returncode
    if status != 0:
        sys.exit(1)


def to_fatbin(source, out, targets):
    with tempfile.TemporaryDirectory() as scratch:
        images = []
        for target in targets:
            cubin = f"{scratch}/{target}.cubin"
            run(f"{TOP}/bin/ptxas", f"-arch=sm_{target}", "-m64", "-v", "--generate-line-info", source, "-o", cubin)
            images.append(f"--image3=kind=elf,sm={target},file={cubin}")
        # Not compressed: the packer is newer than the drivers that this is for.
        run(f"{TOP}/bin/fatbinary", f"--create={out}", "-64", "--compress-mode=none", *images)


def main(arguments):
    if arguments == ["--version"]:
        run(f"{TOP}/bin/ptxas", "--version")
        return
    kind = out = targets = None
    files, options = [], []
    rest = iter(arguments)
    for argument in rest:
        if argument in ("-ptx", "-fatbin"):
            kind = argument
        elif argument == "-o":
            out = next(rest, None)
        elif argument == "-Xptxas":
            next(rest, None)
        elif argument == "-gencode":
            targets = re.findall(r"sm_(\d+a?)", next(rest, ""))
        elif argument.startswith(("-std=", "-lineinfo", "-I", "-D", "-arch=")):
            options.append(argument)
        elif argument == "-O3" or argument.startswith("-ccbin="):
            pass  # what NVRTC does anyhow, and what it does without
        elif argument.startswith("-"):
            fail(f"{argument}: not among the options that this knows")
        else:
            files.append(argument)
    if len(files) != 1 or out is None or kind is None or (kind == "-fatbin" and not targets):
        fail("expected one file, -o FILE, and -ptx or -fatbin with -gencode")
    if kind == "-ptx":
        to_ptx(files[0], out, options)
    else:
        to_fatbin(files[0], out, targets)


main(sys.argv[1:])
