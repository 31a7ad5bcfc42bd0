//! A device with one module on it: typed copies, and launches by kernel name.

use std::sync::Arc;

use cuda_emulator::card::Card;
use cuda_emulator::device::{Device, Launch, LaunchOutcome, Module, Options};
use cuda_emulator::fault::{Code, Fault, Result};
use cuda_emulator::program::Program;
use half::{bf16, f16};

const OWNER: u32 = 1;

pub struct Gpu {
    pub device: Device,
    pub module: Module,
    /// Instructions of all launches, and what else they counted.
    pub outcomes: Vec<LaunchOutcome>,
}

impl Gpu {
    /// An RTX 4090, or an H200 for PTX of compute capability 9.0, that runs blocks and warps in the order of `seed`.
    pub fn new(ptx: &str, seed: u64) -> Result<Gpu> {
        Gpu::with(ptx, Options { seed, ..Options::default() })
    }

    pub fn with(ptx: &str, options: Options) -> Result<Gpu> {
        let card = if ptx.contains(".target sm_90") { "h200" } else { "rtx4090" };
        let mut device = Device::new(Card::named(card).unwrap(), options);
        let module = device.load(OWNER, ptx)?;
        Ok(Gpu { device, module, outcomes: vec![] })
    }

    pub fn kernel(&self, name: &str) -> Result<Arc<Program>> {
        let found = self.module.kernels.iter().find(|kernel| kernel.name == name).cloned();
        found.ok_or_else(|| Fault::new(Code::NotFound, format!("no kernel is named {name:?}")))
    }

    /// Uninitialised memory.
    pub fn alloc<T: Plain>(&mut self, count: usize) -> Result<u64> {
        self.device.alloc(OWNER, (count * T::BYTES) as u64)
    }

    pub fn upload<T: Plain>(&mut self, values: &[T]) -> Result<u64> {
        let address = self.alloc::<T>(values.len())?;
        self.write(address, values)?;
        Ok(address)
    }

    pub fn write<T: Plain>(&mut self, address: u64, values: &[T]) -> Result<()> {
        let mut bytes = Vec::with_capacity(values.len() * T::BYTES);
        values.iter().for_each(|value| value.put(&mut bytes));
        self.device.write(OWNER, address, &bytes)
    }

    pub fn download<T: Plain>(&self, address: u64, count: usize) -> Result<Vec<T>> {
        let mut bytes = vec![0; count * T::BYTES];
        self.device.read(OWNER, address, &mut bytes)?;
        Ok(bytes.chunks(T::BYTES).map(T::get).collect())
    }

    pub fn free(&mut self, address: u64) -> Result<()> {
        self.device.free(OWNER, address)
    }

    pub fn launch(&mut self, kernel: &str, shape: Shape, args: &[Arg]) -> Result<()> {
        let program = self.kernel(kernel)?;
        let params = pack(&program, args)?;
        let outcome = self.device.launch(&Launch {
            kernel: &program,
            grid: shape.grid,
            block: shape.block,
            dynamic_shared: shape.dynamic_shared,
            dynamic_shared_limit: shape.dynamic_shared_limit,
            params: &params,
            cooperative: false,
        })?;
        self.outcomes.push(outcome);
        Ok(())
    }
}

/// Grid, block and shared memory of a launch.
#[derive(Debug, Clone, Copy)]
pub struct Shape {
    pub grid: [u32; 3],
    pub block: [u32; 3],
    pub dynamic_shared: u32,
    pub dynamic_shared_limit: u32,
}

pub fn shape(blocks: usize, threads: usize) -> Shape {
    shape_3d([blocks, 1, 1], [threads, 1, 1])
}

pub fn shape_3d(grid: [usize; 3], block: [usize; 3]) -> Shape {
    let (grid, block) = (grid.map(|n| n as u32), block.map(|n| n as u32));
    Shape { grid, block, dynamic_shared: 0, dynamic_shared_limit: 48 << 10 }
}

impl Shape {
    /// With dynamic shared memory, opted in where it is above 48 KiB.
    pub fn shared(self, bytes: usize) -> Shape {
        let bytes = bytes as u32;
        Shape { dynamic_shared: bytes, dynamic_shared_limit: bytes.max(48 << 10), ..self }
    }
}

/// A kernel's argument.
#[derive(Debug, Clone)]
pub enum Arg {
    Pointer(u64),
    I32(i32),
    I64(i64),
    F32(f32),
    Struct(Vec<u8>),
}

impl Arg {
    fn bytes(&self) -> Vec<u8> {
        match self {
            Arg::Pointer(x) => x.to_le_bytes().to_vec(),
            Arg::I32(x) => x.to_le_bytes().to_vec(),
            Arg::I64(x) => x.to_le_bytes().to_vec(),
            Arg::F32(x) => x.to_le_bytes().to_vec(),
            Arg::Struct(x) => x.clone(),
        }
    }
}

fn pack(program: &Program, args: &[Arg]) -> Result<Vec<u8>> {
    let wrong = |text: String| Fault::new(Code::InvalidValue, format!("{}: {text}", program.name));
    if args.len() != program.params.len() {
        return Err(wrong(format!("{} arguments, expected {}", args.len(), program.params.len())));
    }
    let mut params = vec![0; program.param_bytes as usize];
    for (arg, slot) in args.iter().zip(&program.params) {
        let bytes = arg.bytes();
        if bytes.len() != slot.bytes as usize {
            return Err(wrong(format!("{} has {} bytes, expected {}", slot.name, bytes.len(), slot.bytes)));
        }
        params[slot.offset as usize..][..bytes.len()].copy_from_slice(&bytes);
    }
    Ok(params)
}

/// A value with a fixed layout in memory.
pub trait Plain: Copy {
    const BYTES: usize;
    fn put(self, to: &mut Vec<u8>);
    fn get(bytes: &[u8]) -> Self;
}

macro_rules! plain {
    ($($ty:ty),*) => {$(
        impl Plain for $ty {
            const BYTES: usize = size_of::<$ty>();
            fn put(self, to: &mut Vec<u8>) {
                to.extend_from_slice(&self.to_le_bytes());
            }
            fn get(bytes: &[u8]) -> $ty {
                <$ty>::from_le_bytes(bytes.try_into().unwrap())
            }
        }
    )*};
}

plain!(u8, u16, u32, i32, u64, f32, f64, bf16, f16);
