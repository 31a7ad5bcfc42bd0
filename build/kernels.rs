//! Compiles every `kernels/**/*.cu` for the feature `cuda`: once to PTX, and from that to machine code.
//!
//! Two steps a file: `nvcc -ptx` for compute_80, which is what the emulator runs and what a card newer than the list falls
//! back to; then `nvcc -fatbin`, which has ptxas make a cubin for each capability and say what it used. Files are compiled
//! in parallel, one process each, and only if they, a header they include, nvcc or the flags have changed.
//!
//! `OUT_DIR/kernels.rs` is one Rust expression, a slice of `CompiledFile`, that `src/gpu/modules.rs` includes.
//!
//! - `NVCC`: the nvcc, of any release: for a driver older than 580 that of a 12.x toolkit (`scripts/setup_nvcc.sh 12.9`).
//!   Without it: `CUDA_HOME`, `CUDA_PATH`, `PATH`, then `.cuda/`; the first of release 13 or newer.
//! - `NVCC_CCBIN`: the host compiler for nvcc.
//! - `CUDA_COMPUTE_CAP`: the list of compute capabilities, such as `89` or `80,9.0`; by default 80, 89 and 90.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fmt::Write;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::{env, fs, thread};

const RELEASE: u32 = 13;
const DEFAULT_CAPABILITIES: &str = "80,89,90";
const VARIABLES: [&str; 6] = ["NVCC", "CUDA_HOME", "CUDA_PATH", "PATH", "NVCC_CCBIN", "CUDA_COMPUTE_CAP"];

/// What to compile with.
struct Compiler {
    nvcc: PathBuf,
    /// What `nvcc --version` prints: part of what a result depends on.
    version: String,
    flags: Vec<String>,
    capabilities: Vec<u32>,
}

/// Compiles the `files` of `kernels/` that have changed and writes `OUT_DIR/kernels.rs`.
pub fn compile(files: &[PathBuf], out: &Path) -> Result<(), String> {
    for variable in VARIABLES {
        println!("cargo:rerun-if-env-changed={variable}");
    }
    let compiler = Compiler::new()?;
    let folder = out.join("kernels");
    let sources: Vec<&PathBuf> = files.iter().filter(|file| file.extension().is_some_and(|e| e == "cu")).collect();
    let next = AtomicUsize::new(0);
    let failures = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for _ in 0..jobs() {
            scope.spawn(|| {
                while let Some(source) = sources.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if let Err(failure) = compiler.compile(source, &folder) {
                        failures.lock().expect("no thread panics while it holds this").push(failure);
                    }
                }
            });
        }
    });
    let failures = failures.into_inner().expect("no thread panicked");
    if !failures.is_empty() {
        return Err(failures.join("\n"));
    }
    fs::write(out.join("kernels.rs"), list(&sources, &folder, &compiler)?).map_err(|e| format!("kernels.rs: {e}"))
}

/// `matmul/01_naive` of `kernels/matmul/01_naive.cu`.
fn name(source: &Path) -> String {
    let inside = source.strip_prefix("kernels").unwrap_or(source);
    inside.with_extension("").to_string_lossy().replace('\\', "/")
}

fn list(sources: &[&PathBuf], folder: &Path, compiler: &Compiler) -> Result<String, String> {
    let capabilities: Vec<String> = compiler.capabilities.iter().map(u32::to_string).collect();
    let release = release(&compiler.version).unwrap_or_default();
    let mut text =
        format!("Compiled {{ capabilities: &[{}], release: {release:?}, files: &[\n", capabilities.join(", "));
    for source in sources {
        let name = name(source);
        let path = |ending: &str| folder.join(format!("{name}.{ending}"));
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "CompiledFile {{ name: {name:?}, ptx: include_str!({:?}), cubins: include_bytes!({:?}), ptxas: include_str!({:?}), entries: &[",
            path("ptx"),
            path("fatbin"),
            path("ptxas")
        );
        let ptx = fs::read_to_string(path("ptx")).map_err(|e| format!("{name}.ptx: cannot be read: {e}"))?;
        for (entry, params) in entries(&ptx) {
            let _ = writeln!(text, "Entry {{ name: {entry:?}, params: &[{}] }},", params.join(", "));
        }
        text.push_str("] },\n");
    }
    text.push_str("] }\n");
    Ok(text)
}

/// The kernels of a PTX file, each with its parameters' kinds as `src/gpu/mod.rs` names them. A 64-bit parameter is a
/// pointer if it becomes a global address; one that only inline assembly uses is known as 64 bits.
fn entries(ptx: &str) -> Vec<(String, Vec<&'static str>)> {
    let mut found = Vec::new();
    for entry in ptx.split(".visible .entry ").skip(1) {
        let Some((name, rest)) = entry.split_once('(') else { continue };
        let Some((list, body)) = rest.split_once(')') else { continue };
        let params = list.split(',').filter_map(|param| {
            let mut words = param.split_whitespace().skip_while(|word| *word != ".param").skip(1);
            let (kind, name) = (words.next()?, words.last()?);
            Some(match kind {
                ".f32" => "Param::F32",
                ".u64" | ".b64" if is_address(body, name) => "Param::Pointer",
                ".u64" | ".b64" => "Param::Bits64",
                _ => "Param::Bits32",
            })
        });
        found.push((name.trim().to_string(), params.collect()));
    }
    found
}

/// Whether the register that a parameter is loaded into is turned into a global address.
fn is_address(body: &str, param: &str) -> bool {
    let load = body.lines().find(|line| line.contains("ld.param") && line.contains(&format!("[{param}]")));
    let Some(register) = load.and_then(|line| line.split_whitespace().nth(1)) else { return false };
    let address = format!(", {};", register.trim_end_matches(','));
    body.lines().any(|line| line.contains("cvta.to.global") && line.ends_with(&address))
}

fn jobs() -> usize {
    let asked = env::var("NUM_JOBS").ok().and_then(|jobs| jobs.parse().ok());
    asked.or_else(|| thread::available_parallelism().ok().map(usize::from)).unwrap_or(1)
}

impl Compiler {
    fn new() -> Result<Compiler, String> {
        let (nvcc, version) = find_nvcc()?;
        let mut flags: Vec<String> = ["-std=c++17", "-O3", "-lineinfo", "-Ikernels"].map(String::from).to_vec();
        if let Some(host) = env::var("NVCC_CCBIN").ok().filter(|host| !host.is_empty()) {
            flags.push(format!("-ccbin={host}"));
        }
        let asked = env::var("CUDA_COMPUTE_CAP").ok().filter(|list| !list.trim().is_empty());
        let capabilities = capabilities(asked.as_deref().unwrap_or(DEFAULT_CAPABILITIES))?;
        Ok(Compiler { nvcc, version, flags, capabilities })
    }

    fn compile(&self, source: &Path, folder: &Path) -> Result<(), String> {
        let base = folder.join(name(source));
        let path = |ending: &str| PathBuf::from(format!("{}.{ending}", base.display()));
        let mut hash = DefaultHasher::new();
        (&self.version, &self.flags, &self.capabilities).hash(&mut hash);
        let mut seen = BTreeSet::new();
        hash_file(source, &mut seen, &mut hash)?;
        let key = format!("{:016x}", hash.finish());
        let made = ["ptx", "fatbin", "ptxas"].map(path);
        if fs::read_to_string(path("key")).is_ok_and(|kept| kept == key) && made.iter().all(|file| file.exists()) {
            return Ok(());
        }
        fs::create_dir_all(base.parent().unwrap_or(folder)).map_err(|e| format!("{}: {e}", folder.display()))?;
        let _ = fs::remove_file(path("key")); // until all is done, what lies here is not to be trusted
        let [ptx, fatbin, ptxas] = &made;
        let mut arguments: Vec<&OsStr> = self.flags.iter().map(OsStr::new).collect();
        arguments.extend([OsStr::new("-ptx"), OsStr::new("-arch=compute_80"), source.as_os_str(), OsStr::new("-o")]);
        arguments.push(ptx.as_os_str());
        self.run(source, &arguments)?;
        let targets: Vec<String> = self.capabilities.iter().map(|capability| format!("sm_{capability}")).collect();
        let targets = format!("arch=compute_80,code=[{}]", targets.join(","));
        let options = ["-fatbin", "-Xptxas", "-v", "-lineinfo", "-gencode", &targets].map(OsStr::new);
        let output =
            self.run(source, &[&options[..], &[ptx.as_os_str(), OsStr::new("-o"), fatbin.as_os_str()]].concat())?;
        // Where the linking of cubins has to say something, it goes to standard output.
        let said = [output.stdout, output.stderr].concat();
        let write = |path: &Path, text: &[u8]| fs::write(path, text).map_err(|e| format!("{}: {e}", path.display()));
        write(ptxas, &said)?;
        write(&path("key"), key.as_bytes())
    }

    /// One process; its whole output is the error if it fails.
    fn run(&self, source: &Path, arguments: &[&OsStr]) -> Result<Output, String> {
        let mut command = Command::new(&self.nvcc);
        let output =
            command.args(arguments).output().map_err(|e| format!("{}: cannot be run: {e}", self.nvcc.display()))?;
        if output.status.success() {
            return Ok(output);
        }
        let said = [output.stdout, output.stderr].concat();
        Err(format!("{}: {command:?} failed:\n{}", source.display(), String::from_utf8_lossy(&said)))
    }
}

/// The file's text and, once each, that of every header it includes with quotes.
fn hash_file(path: &Path, seen: &mut BTreeSet<PathBuf>, hash: &mut DefaultHasher) -> Result<(), String> {
    if !seen.insert(path.to_path_buf()) {
        return Ok(());
    }
    let text = fs::read_to_string(path).map_err(|e| format!("{}: cannot be read: {e}", path.display()))?;
    text.hash(hash);
    for line in text.lines() {
        let Some(rest) = line.trim_start().strip_prefix("#include \"") else { continue };
        let Some(header) = rest.split('"').next() else { continue };
        let beside = path.parent().unwrap_or(Path::new("")).join(header);
        let found = [beside, Path::new("kernels").join(header)].into_iter().find(|header| header.exists());
        hash_file(&found.ok_or_else(|| format!("{}: {header} is not there", path.display()))?, seen, hash)?;
    }
    Ok(())
}

/// 80 and 90 of `80,9.0`.
fn capabilities(list: &str) -> Result<Vec<u32>, String> {
    let mut found = BTreeSet::new();
    for part in list.split([',', ';', ' ']).filter(|part| !part.is_empty()) {
        let number = part.trim_start_matches("sm_").replace('.', "").parse().unwrap_or(0);
        if !(80..=200).contains(&number) {
            return Err(format!(
                "CUDA_COMPUTE_CAP: found {part:?}, expected compute capabilities from 80 on, such as 80,89"
            ));
        }
        found.insert(number);
    }
    if found.is_empty() {
        return Err(format!("CUDA_COMPUTE_CAP: found {list:?}, expected a list such as 80,89"));
    }
    Ok(found.into_iter().collect())
}

/// The path and version text of the first nvcc that is new enough.
fn find_nvcc() -> Result<(PathBuf, String), String> {
    let set = |variable| env::var_os(variable).filter(|value| !value.is_empty()).map(PathBuf::from);
    if let Some(path) = set("NVCC") {
        let version = version(&path).filter(|version| release(version).is_some());
        let version =
            version.ok_or_else(|| format!("NVCC={}: found no nvcc that runs, expected one", path.display()))?;
        return Ok((path, version));
    }
    let homes = ["CUDA_HOME", "CUDA_PATH"].into_iter().filter_map(set).map(|home| home.join("bin/nvcc"));
    let on_path = set("PATH").map(|path| env::split_paths(&path).collect::<Vec<_>>()).unwrap_or_default();
    let own = env::current_dir().map(|root| root.join(".cuda/bin/nvcc")).ok();
    let mut older = String::new();
    for path in homes.chain(on_path.into_iter().map(|folder| folder.join("nvcc"))).chain(own) {
        let Some(version) = version(&path) else { continue };
        match release(&version) {
            Some(release) if major(&release) >= RELEASE => return Ok((path, version)),
            _ => older = format!(" ({} is older)", path.display()),
        }
    }
    Err(format!(
        "feature cuda: found no nvcc of release {RELEASE} or newer{older}, looked for in NVCC, CUDA_HOME, CUDA_PATH, PATH and .cuda: run scripts/setup_nvcc.sh"
    ))
}

fn version(nvcc: &Path) -> Option<String> {
    let output = Command::new(nvcc).arg("--version").output().ok().filter(|output| output.status.success())?;
    String::from_utf8(output.stdout).ok()
}

/// 13.0 of "… release 13.0, V13.0.88".
fn release(version: &str) -> Option<String> {
    Some(version.split("release ").nth(1)?.split(',').next()?.trim().to_string())
}

fn major(release: &str) -> u32 {
    release.split('.').next().and_then(|major| major.parse().ok()).unwrap_or(0)
}
