#!/usr/bin/env python3
"""Deletes or weakens every barrier and every cp.async wait of the production kernels, one at a time, and looks whether the
emulator or a test notices.

    scripts/kernel_mutations.py [FILE…]        such as matmul attention_forward; without one, every kernels/*.cu and *.cuh

A barrier (`__syncthreads`, `__syncwarp`) is deleted. A wait (`copy_async_wait<N>`) is deleted, and is weakened to let one more
group be under way. The changed file is compiled to PTX, which the tests load in place of the built-in one (HANDGRAD_KERNELS).
A change counts as caught if the cases of its operators (tests/device.rs) or the tests that name them (tests/kernels) fail, or
do not end. Exit status 1 if one survives: then a barrier is
redundant and goes, or a test is missing.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
KERNELS = ROOT / "kernels"
BARRIER = re.compile(r"__sync(threads|warp)\([^()]*\);")
WAIT = re.compile(r"ptx::copy_async_wait<(.*?)>\(\);")
TIMEOUT = 900  # seconds


def find_nvcc():
    found = subprocess.run([ROOT / "scripts/setup_nvcc.sh"], check=True, capture_output=True, text=True)
    return found.stdout.split()[-1]


def test_binaries():
    """The paths of tests/kernels and tests/device."""
    command = ["cargo", "test", "--features", "cuda", "--test", "kernels", "--test", "device", "--no-run", "--message-format", "json"]
    built = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
    messages = [json.loads(line) for line in built.stdout.splitlines() if line.startswith("{")]
    paths = {m["target"]["name"]: m["executable"] for m in messages if m.get("executable")}
    return paths["kernels"], paths["device"]


def without_comments(line):
    return line.split("//")[0]


def sites(path):
    """(line number, what, changed text of the file) for each change."""
    lines = path.read_text().splitlines(keepends=True)
    for number, line in enumerate(lines):
        code = without_comments(line)
        for pattern in (BARRIER, WAIT):
            for match in pattern.finditer(code):
                changes = [("deleted " + match.group(), ";")]
                if pattern is WAIT:
                    changes.append((f"weakened {match.group()}", f"ptx::copy_async_wait<({match.group(1)}) + 1>();"))
                for what, replacement in changes:
                    changed = line[: match.start()] + replacement + line[match.end() :]
                    yield number + 1, what, "".join(lines[:number] + [changed] + lines[number + 1 :])


def includes(path):
    """The names of the headers that a file includes, directly or not."""
    found = set()
    for header in re.findall(r'^#include "([^"]+)"', path.read_text(), re.M):
        found |= {header} | includes(KERNELS / header)
    return found


def function_around(path, line):
    """The name of the function or struct that a line of a header stands in: the last one that begins without indentation."""
    names = [re.match(r"struct (\w+)|\w.*?(\w+)\(", text) for text in path.read_text().splitlines()[:line]]
    return [name.group(1) or name.group(2) for name in names if name][-1]


def affected(path, line):
    """The stems of the kernels that a change to a line of the file touches."""
    if path.suffix == ".cu":
        return [path.stem]
    use = re.compile(rf"\b{function_around(path, line)}\b")
    users = [cu for cu in KERNELS.glob("*.cu") if path.name in includes(cu)]
    sources = {cu: [cu, *(KERNELS / header for header in includes(cu) if header != path.name)] for cu in users}
    return sorted(cu.stem for cu in users if any(use.search(source.read_text()) for source in sources[cu]))


def operators(stem):
    """attention of attention_backward_dq: the longest name of an operator that the kernels' file begins with, and those that
    use its kernels."""
    names = [file.stem for file in (ROOT / "src/ops").glob("*.rs") if f"{stem}_".startswith(f"{file.stem}_")]
    name = max(names, key=len)
    return [name, *{"matmul": ["linear"], "cross_entropy": ["linear_cross_entropy"]}.get(name, [])]


def test_modules(names):
    """The modules of tests/kernels that name one of the operators."""
    word = re.compile(rf"\b({'|'.join(names)})(_\w*)?\b")
    files = [file for file in (ROOT / "tests/kernels").glob("*.rs") if file.stem not in ("main", "common", "launch", "ladders")]
    return [f"{file.stem}::" for file in files if word.search(file.read_text())]


def run_tests(binaries, stems, folder):
    """Whether the stems' tests pass with the PTX in the folder; None if they do not end."""
    kernels, device = binaries
    names = sorted({name for stem in stems for name in operators(stem)})
    environment = dict(os.environ, HANDGRAD_KERNELS=str(folder), HANDGRAD_EMULATOR_QUIET="1", RUST_BACKTRACE="0")
    environment.setdefault("HANDGRAD_TEST_SEED", "1")  # a change is caught by what it does, not by the draw
    environment["HANDGRAD_TEST_OPS"] = ",".join(names)
    modules = test_modules(names)
    for command in [[device]] + ([[kernels, *modules]] if modules else []):
        try:
            result = subprocess.run(command, cwd=ROOT, env=environment, timeout=TIMEOUT, capture_output=True, text=True)
        except subprocess.TimeoutExpired:
            return None
        if re.search(r"\b0 passed; 0 failed", result.stdout):
            sys.exit(f"{', '.join(names)}: no test of this name")
        if result.returncode != 0:
            return False
    return True


def compile_ptx(nvcc, sources, stem, folder):
    command = [nvcc, "-ptx", "-arch=compute_80", "-std=c++17", "-O3", "-lineinfo", f"-I{sources}"]
    command += [str(sources / f"{stem}.cu"), "-o", str(folder / f"{stem}.ptx")]
    compiled = subprocess.run(command, capture_output=True, text=True)
    if compiled.returncode != 0:
        sys.exit(f"{stem}: does not compile:\n{compiled.stderr}")


def attempt(nvcc, binaries, path, line, text):
    """`caught` if the tests noticed that the file's text was changed in a line, else `survived`."""
    with tempfile.TemporaryDirectory() as scratch:
        sources, folder = Path(scratch) / "kernels", Path(scratch) / "ptx"
        sources.mkdir(), folder.mkdir()
        for file in [*KERNELS.glob("*.cu*"), *KERNELS.glob("*.h")]:
            (sources / file.name).write_text(text if file == path else file.read_text())
        stems = affected(path, line)
        for stem in stems:
            compile_ptx(nvcc, sources, stem, folder)
        return "survived" if run_tests(binaries, stems, folder) else "caught"


def main():
    wanted = sys.argv[1:]
    files = sorted(KERNELS.glob("*.cu")) + sorted(KERNELS.glob("*.cuh"))
    unknown = set(wanted) - {file.stem for file in files}
    if unknown:
        sys.exit(f"found {', '.join(sorted(unknown))}, expected stems of files in kernels/")
    files = [file for file in files if (not wanted or file.stem in wanted) and list(sites(file))]
    nvcc, binaries = find_nvcc(), test_binaries()
    work = [(file, *site) for file in files for site in sites(file)]
    for file in files:
        if attempt(nvcc, binaries, file, next(sites(file))[0], file.read_text()) != "survived":
            sys.exit(f"{file.name}: its tests fail without any change")
    survivors = 0
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        outcomes = pool.map(lambda job: attempt(nvcc, binaries, job[0], job[1], job[3]), work)
        for (file, line, what, _), outcome in zip(work, outcomes):
            survivors += outcome == "survived"
            print(f"{outcome:8} {file.name}:{line}: {what}", flush=True)
    print(f"{len(work) - survivors} of {len(work)} changes caught")
    sys.exit(1 if survivors else 0)


if __name__ == "__main__":
    main()
