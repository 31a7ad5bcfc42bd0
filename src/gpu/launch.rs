//! A kernel's parameters as Rust knows them, the checks of operands, and the launch.
//!
//! A [`Kernel`] names its parameters' kinds; a test holds that list against the `.param` list of every compiled variant.
//! Launch functions check their operands with [`Check`], so bad input is a [`LaunchError`] and never a fault on the device.

use cudarc::driver::{LaunchConfig, PushKernelArg};

use super::context::Gpu;
use super::memory::{View, ViewMut};
use super::{LaunchError, Result};

/// A kernel of `kernels/FILE.cu`, in all its variants: entries named `NAME` or `NAME_VARIANT`.
#[derive(Debug)]
pub struct Kernel {
    pub file: &'static str,
    pub name: &'static str,
    pub params: &'static [Param],
}

/// The kind of a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Param {
    Pointer,
    I32,
    I64,
    U32,
    U64,
    F32,
}

/// The value of a parameter.
#[derive(Clone, Copy, Debug)]
pub enum Arg {
    Pointer(u64),
    I32(i32),
    I64(i64),
    U32(u32),
    U64(u64),
    F32(f32),
}

impl Arg {
    pub fn param(self) -> Param {
        match self {
            Arg::Pointer(_) => Param::Pointer,
            Arg::I32(_) => Param::I32,
            Arg::I64(_) => Param::I64,
            Arg::U32(_) => Param::U32,
            Arg::U64(_) => Param::U64,
            Arg::F32(_) => Param::F32,
        }
    }

    /// The pointer of an operand that may be absent: null if it is.
    pub fn optional<E>(view: Option<View<E>>) -> Arg {
        Arg::Pointer(view.map_or(0, View::address))
    }
}

/// Blocks, threads of a block, and bytes of dynamic shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    pub grid: [u32; 3],
    pub block: [u32; 3],
    pub shared_bytes: usize,
}

impl Config {
    /// Enough blocks of `threads` threads for `work` threads, in one dimension. Error: more than a grid can have.
    pub fn linear(work: usize, threads: u32) -> Result<Config> {
        let blocks = work.div_ceil(threads as usize);
        let limit = i32::MAX as u32;
        let grid = u32::try_from(blocks).ok().filter(|&blocks| blocks <= limit);
        let grid = grid.ok_or(LaunchError::Range {
            kernel: "launch",
            what: "blocks",
            found: blocks.to_string(),
            expected: format!("at most {limit}"),
        })?;
        Ok(Config { grid: [grid, 1, 1], block: [threads, 1, 1], shared_bytes: 0 })
    }
}

impl Gpu {
    /// Submits the kernel's variant (`""` if it has none) to the stream.
    ///
    /// An empty grid launches nothing. Errors: arguments that are not the kernel's, a block or grid or shared memory beyond
    /// the card's limits, what the driver says.
    pub fn launch(&self, kernel: &Kernel, variant: &str, config: Config, args: &[Arg]) -> Result<()> {
        let name = if variant.is_empty() { kernel.name.to_string() } else { format!("{}_{variant}", kernel.name) };
        check_arguments(&name, kernel.params, args)?;
        if config.grid.contains(&0) {
            return Ok(());
        }
        // Attributes of a function are asked for and set in the current context, and each thread has its own.
        self.stream().context().bind_to_thread().map_err(LaunchError::driver(&*name))?;
        let function = self.function(kernel.file, &name)?;
        check_config(&name, &config, self.limits(), function.max_threads)?;
        function.reserve_shared(&name, config.shared_bytes, self.limits())?;

        let mut builder = self.stream().launch_builder(&function.function);
        for arg in args {
            match arg {
                Arg::Pointer(value) | Arg::U64(value) => builder.arg(value),
                Arg::I32(value) => builder.arg(value),
                Arg::I64(value) => builder.arg(value),
                Arg::U32(value) => builder.arg(value),
                Arg::F32(value) => builder.arg(value),
            };
        }
        let ([x, y, z], [bx, by, bz]) = (config.grid, config.block);
        let config = LaunchConfig {
            grid_dim: (x, y, z),
            block_dim: (bx, by, bz),
            shared_mem_bytes: config.shared_bytes as u32, // below the limit that was checked
        };
        // SAFETY: the arguments are of the kinds that the compiled kernel has, which a test holds for every variant; the
        // memory behind the pointers was checked by the launch function, and outlives the launch because it is freed on
        // the same stream.
        unsafe { builder.launch(config) }.map(|_| ()).map_err(LaunchError::driver(name))
    }
}

fn check_arguments(name: &str, params: &[Param], args: &[Arg]) -> Result<()> {
    if args.len() == params.len() && args.iter().zip(params).all(|(arg, &param)| arg.param() == param) {
        return Ok(());
    }
    let list =
        |params: &mut dyn Iterator<Item = Param>| params.map(|p| format!("{p:?}")).collect::<Vec<_>>().join(", ");
    Err(LaunchError::Arguments {
        kernel: name.to_string(),
        found: list(&mut args.iter().map(|arg| arg.param())),
        expected: list(&mut params.iter().copied()),
    })
}

fn check_config(name: &str, config: &Config, limits: &super::Limits, most_threads: u32) -> Result<()> {
    let threads = config.block.iter().try_fold(1u32, |product, &x| product.checked_mul(x)).unwrap_or(u32::MAX);
    if threads == 0 || threads > most_threads {
        return Err(LaunchError::Threads { kernel: name.to_string(), requested: threads, limit: most_threads });
    }
    for ((axis, &requested), &limit) in ['x', 'y', 'z'].into_iter().zip(&config.grid).zip(&limits.grid) {
        if requested > limit {
            return Err(LaunchError::Grid { kernel: name.to_string(), axis, requested, limit });
        }
    }
    Ok(())
}

/// The checks of a launch function's operands; holds the name that errors give.
#[derive(Clone, Copy, Debug)]
pub struct Check(pub &'static str);

impl Check {
    /// The number of elements of a shape. Error: its bytes, at 8 for each, would not fit in 63 bits.
    pub fn product(self, operand: &'static str, shape: &[usize]) -> Result<usize> {
        let product = shape.iter().try_fold(1usize, |product, &x| product.checked_mul(x));
        product.filter(|&product| product <= (i64::MAX / 8) as usize).ok_or_else(|| LaunchError::Overflow {
            kernel: self.0,
            operand,
            shape: shape.to_vec(),
        })
    }

    /// An operand of at least `expected` elements at an address that fits its type.
    pub fn operand<E>(self, operand: &'static str, view: View<E>, expected: usize) -> Result<()> {
        let (address, found) = (view.address(), view.len());
        if expected == 0 {
            return Ok(());
        }
        if address == 0 {
            return Err(LaunchError::Null { kernel: self.0, operand, expected });
        }
        if found < expected {
            return Err(LaunchError::TooSmall { kernel: self.0, operand, found, expected });
        }
        self.aligned(operand, view, size_of::<E>() as u64)
    }

    /// The same for an operand that is written.
    pub fn output<E>(self, operand: &'static str, view: &ViewMut<E>, expected: usize) -> Result<()> {
        self.operand(operand, view.as_view(), expected)
    }

    /// An address that is a multiple of `bytes`.
    pub fn aligned<E>(self, operand: &'static str, view: View<E>, bytes: u64) -> Result<()> {
        if view.is_aligned(bytes) {
            return Ok(());
        }
        Err(LaunchError::Misaligned { kernel: self.0, operand, address: view.address(), expected: bytes })
    }

    /// A number that the kernel takes as a 32-bit integer.
    pub fn i32(self, what: &'static str, value: usize) -> Result<i32> {
        i32::try_from(value).map_err(|_| self.range(what, value, format!("at most {}", i32::MAX)))
    }

    /// A number that is not 0.
    pub fn positive(self, what: &'static str, value: usize) -> Result<()> {
        if value > 0 { Ok(()) } else { Err(self.range(what, value, "at least 1")) }
    }

    pub fn head_dim(self, found: usize, expected: &[usize]) -> Result<()> {
        if expected.contains(&found) {
            return Ok(());
        }
        Err(LaunchError::HeadDim { kernel: self.0, found, expected: expected.to_vec() })
    }

    /// The query heads of a KV head.
    pub fn group(self, n_head: usize, n_kv_head: usize) -> Result<usize> {
        if n_kv_head > 0 && n_head.is_multiple_of(n_kv_head) {
            return Ok(n_head / n_kv_head);
        }
        Err(LaunchError::Group { kernel: self.0, n_head, n_kv_head })
    }

    pub fn range(self, what: &'static str, found: impl ToString, expected: impl ToString) -> LaunchError {
        LaunchError::Range { kernel: self.0, what, found: found.to_string(), expected: expected.to_string() }
    }
}
