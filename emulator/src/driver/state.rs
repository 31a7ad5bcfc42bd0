//! What the driver knows between calls.

use std::collections::HashMap;
use std::sync::Arc;
use std::thread::ThreadId;
use std::time::Instant;

use super::abi::Handle;
use super::handle::{Kind, Table};
use super::host::HostMemory;
use super::order::{Actor, Clock, Order};
use super::pool::{Pool, Pooled};
use super::report::ReportFile;
use crate::card::Card;
use crate::device::{Device, Module, Options};
use crate::fault::{Code, Fault, Result};
use crate::program::Program;

pub struct Driver {
    pub device: Device,
    pub contexts: Table<Context>,
    pub primary: Primary,
    pub streams: Table<Stream>,
    pub events: Table<Event>,
    pub modules: Table<LoadedModule>,
    pub functions: Table<Function>,
    pub libraries: Table<Library>,
    pub kernels: Table<Kernel>,
    pub pools: Table<Pool>,
    pub default_pool: Handle,
    /// Where `cuMemAllocAsync` allocates.
    pub current_pool: Handle,
    /// The live allocations of pools, by address.
    pub pooled: HashMap<u64, Pooled>,
    pub order: Order,
    pub host: HostMemory,
    pub report: ReportFile,
    /// The error that is being returned was returned before.
    pub repeated: bool,
}

/// The primary context: shared by all who retain it.
#[derive(Default)]
pub struct Primary {
    pub context: Option<Handle>,
    pub retained: u32,
    pub flags: u32,
}

pub struct Context {
    /// The context's number where memory is owned.
    pub owner: u32,
    pub primary: bool,
    pub flags: u32,
    pub cache_config: u32,
    /// What `cuCtxSetLimit` set.
    pub limits: HashMap<u32, usize>,
    /// The legacy default stream.
    pub legacy: Handle,
    pub per_thread: HashMap<ThreadId, Handle>,
    /// The work of streams that were destroyed.
    pub gone: Clock,
}

pub struct Stream {
    pub context: Handle,
    pub owner: u32,
    pub actor: Actor,
    /// "stream 2", "the default stream"
    pub label: Arc<str>,
    pub flags: u32,
    pub priority: i32,
    pub role: Role,
    /// The latest error of a launch, which the next wait returns once more.
    pub fault: Option<Fault>,
}

/// How a stream stands to the legacy default stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    Legacy,
    /// Ordered with the legacy default stream.
    Blocking,
    /// `CU_STREAM_NON_BLOCKING`
    NonBlocking,
}

pub struct Event {
    pub context: Handle,
    pub flags: u32,
    pub record: Option<Record>,
}

pub struct Record {
    pub clock: Clock,
    pub at: Instant,
    pub stream: Handle,
}

pub struct LoadedModule {
    pub context: Handle,
    pub module: Module,
    pub functions: HashMap<String, Handle>,
}

pub struct Function {
    pub context: Handle,
    pub module: Handle,
    pub program: Arc<Program>,
    /// `CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES`
    pub dynamic_shared_limit: u32,
    pub carveout: i32,
}

/// A library belongs to no context; each context gets its module at the first use.
pub struct Library {
    pub ptx: String,
    pub modules: HashMap<Handle, Handle>,
    pub kernels: HashMap<String, Handle>,
}

pub struct Kernel {
    pub library: Handle,
    pub name: String,
}

impl Driver {
    /// The device that the environment asks for.
    pub fn from_environment() -> Result<Driver> {
        let text = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let number = |name: &str, default: u64| match text(name) {
            None => Ok(default),
            Some(value) => value
                .parse()
                .map_err(|_| Fault::new(Code::InvalidValue, format!("{name}={value:?}: expected a whole number"))),
        };
        let key = text("HANDGRAD_EMULATOR_CARD").unwrap_or_else(|| "rtx4090".to_string());
        let card = Card::named(&key).map_err(|e| Fault::new(Code::NoDevice, format!("HANDGRAD_EMULATOR_CARD: {e}")))?;
        let options = Options {
            seed: number("HANDGRAD_EMULATOR_SEED", 0)?,
            step_limit: number("HANDGRAD_EMULATOR_STEPS", Options::default().step_limit)?,
        };
        let report = ReportFile::from_environment(card.clone());
        Ok(Driver::new(card, options, report))
    }

    pub fn new(card: Card, options: Options, report: ReportFile) -> Driver {
        let mut pools = Table::new(Kind::Pool);
        let default_pool = pools.insert(Pool::default());
        Driver {
            device: Device::new(card, options),
            contexts: Table::new(Kind::Context),
            primary: Primary::default(),
            streams: Table::new(Kind::Stream),
            events: Table::new(Kind::Event),
            modules: Table::new(Kind::Module),
            functions: Table::new(Kind::Function),
            libraries: Table::new(Kind::Library),
            kernels: Table::new(Kind::Kernel),
            pools,
            default_pool,
            current_pool: default_pool,
            pooled: HashMap::new(),
            order: Order::default(),
            host: HostMemory::default(),
            report,
            repeated: false,
        }
    }

    /// The only device there is.
    pub fn check_device(&self, ordinal: i32) -> Result<()> {
        if ordinal == 0 {
            return Ok(());
        }
        Err(Fault::new(Code::InvalidDevice, format!("device {ordinal}: there is one emulated device, number 0")))
    }
}
