//! What the driver knows about an address (`CUpointer_attribute`).

use super::host::HostKind;
use super::state::Driver;
use crate::fault::{Code, Fault, Result};

/// An attribute's value; C reads it at its own width.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Value {
    Word(u64),
    Int(i32),
    Flag(bool),
}

const HOST: i32 = 1;
const DEVICE: i32 = 2;

/// Where an address lies.
struct Residency {
    start: u64,
    bytes: u64,
    on_host: bool,
    managed: bool,
}

impl Driver {
    fn residency(&self, address: u64) -> Option<Residency> {
        if let Some(block) = self.host.holding(address) {
            let managed = block.kind == HostKind::Managed;
            return Some(Residency { start: block.start(), bytes: block.len(), on_host: true, managed });
        }
        let (start, bytes) = self.device.allocation(address).ok()?;
        Some(Residency { start, bytes, on_host: false, managed: false })
    }

    pub fn pointer_attribute(&self, attribute: u32, address: u64) -> Result<Value> {
        let unknown = || {
            let message = format!("{address:#x} is not an address that the driver knows");
            Fault::new(Code::InvalidValue, message)
        };
        let residency = self.residency(address);
        if attribute == 13 {
            return Ok(Value::Flag(residency.is_some()));
        }
        let residency = residency.ok_or_else(unknown)?;
        Ok(match attribute {
            1 => Value::Word(self.current()? as u64),
            2 => Value::Int(if residency.on_host && !residency.managed { HOST } else { DEVICE }),
            3 => Value::Word(address),
            4 if residency.on_host => Value::Word(address),
            4 => return Err(Fault::new(Code::InvalidValue, format!("{address:#x} has no host address"))),
            6 => Value::Flag(false),
            7 => Value::Word(residency.start),
            8 => Value::Flag(residency.managed),
            9 => Value::Int(0),
            10 => Value::Flag(false),
            11 => Value::Word(residency.start),
            12 => Value::Word(residency.bytes),
            15 => Value::Flag(false),
            16 => Value::Int(3),
            17 => Value::Word(self.pooled.get(&residency.start).map_or(0, |pooled| pooled.pool as u64)),
            _ => return Err(Fault::new(Code::NotSupported, format!("pointer attribute {attribute} is not emulated"))),
        })
    }
}
