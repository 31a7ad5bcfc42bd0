//! What the device and its kernels answer when asked for attributes (`CUdevice_attribute`, `CUfunction_attribute`, `CUlimit`).

use super::abi::Handle;
use super::occupancy;
use super::state::Driver;
use crate::card::Card;
use crate::fault::{Code, Fault, Result};
use crate::occupancy::estimated_registers;

/// The highest attribute number of CUDA 13.0.
const LAST_DEVICE_ATTRIBUTE: i32 = 147;

/// A device attribute. Those of features that are not emulated (textures, clusters, peers, virtual memory …) are 0.
pub fn device(card: &Card, attribute: i32) -> Result<i32> {
    let value = match attribute {
        1 => card.threads_per_block,
        2..=4 => card.block_limit[attribute as usize - 2],
        5..=7 => card.grid_limit[attribute as usize - 5],
        8 => card.shared_per_block,
        9 => 65_536,           // constant memory
        10 => 32,              // warp size
        11 => i32::MAX as u32, // pitch
        12 => card.registers_per_block,
        13 => card.clock_khz,
        14 => 512, // texture alignment
        15 => 1,   // copies overlap kernels
        16 => card.multiprocessors,
        19 => 1, // maps host memory
        31 => 1, // concurrent kernels
        33 => 1, // PCI bus
        36 => card.memory_clock_khz,
        37 => card.memory_bus_bits,
        38 => card.l2_bytes,
        39 => card.threads_per_multiprocessor,
        40 => 2,  // copy engines
        41 => 1,  // unified addressing
        51 => 32, // texture pitch alignment
        75 => card.compute_capability.0,
        76 => card.compute_capability.1,
        78..=80 => 1, // priorities, L1 caches
        81 => card.shared_per_multiprocessor,
        82 => card.registers_per_multiprocessor,
        83 => 1, // managed memory
        87 => (card.f32_tflops / card.f64_tflops).round() as u32,
        90 | 91 => 1, // preemption, registered memory by its host address
        95 => 1,      // cooperative launch
        97 => card.shared_per_block_optin,
        99 => 1, // host registration
        106 => card.blocks_per_multiprocessor,
        111 => card.shared_reserved_per_block,
        115 => 1, // memory pools
        17..=LAST_DEVICE_ATTRIBUTE => 0,
        _ => return Err(Fault::new(Code::InvalidValue, format!("device attribute {attribute} is not known"))),
    };
    Ok(value as i32)
}

const MAX_THREADS: i32 = 0;
const STATIC_SHARED: i32 = 1;
const CONSTANT: i32 = 2;
const LOCAL: i32 = 3;
const REGISTERS: i32 = 4;
const PTX_VERSION: i32 = 5;
const BINARY_VERSION: i32 = 6;
const MAX_DYNAMIC_SHARED: i32 = 8;
const CARVEOUT: i32 = 9;
const LAST: i32 = 15;

impl Driver {
    pub fn function_attribute(&mut self, function: Handle, attribute: i32) -> Result<i32> {
        let handle = self.function(function)?;
        let (function, card) = (self.functions.get(handle)?, &self.device.card);
        let program = &function.program;
        let capability = (card.compute_capability.0 * 10 + card.compute_capability.1) as i32;
        Ok(match attribute {
            MAX_THREADS => occupancy::threads_per_block(card, program) as i32,
            STATIC_SHARED => program.static_shared as i32,
            LOCAL => program.local_bytes as i32,
            REGISTERS => estimated_registers(program) as i32,
            PTX_VERSION | BINARY_VERSION => capability,
            MAX_DYNAMIC_SHARED => function.dynamic_shared_limit as i32,
            CARVEOUT => function.carveout,
            CONSTANT..=LAST => 0,
            _ => return Err(Fault::new(Code::InvalidValue, format!("function attribute {attribute} is not known"))),
        })
    }

    pub fn set_function_attribute(&mut self, function: Handle, attribute: i32, value: i32) -> Result<()> {
        let handle = self.function(function)?;
        let card = &self.device.card;
        let (optin, plain) = (card.shared_per_block_optin, card.shared_per_block);
        let function = self.functions.get_mut(handle)?;
        let program = &function.program;
        match attribute {
            MAX_DYNAMIC_SHARED => {
                let most = optin.saturating_sub(program.static_shared);
                if value < 0 || value as u32 > most {
                    let message = format!(
                        "kernel {}: {value} bytes of dynamic shared memory wanted, {most} is the most: {optin} bytes a block less {} static ones",
                        program.name, program.static_shared
                    );
                    return Err(Fault::new(Code::InvalidValue, message));
                }
                // Setting it lower than what needs no opt-in takes nothing away.
                let default = plain.saturating_sub(program.static_shared);
                function.dynamic_shared_limit = (value as u32).max(default);
                Ok(())
            }
            CARVEOUT if (-1..=100).contains(&value) => {
                function.carveout = value;
                Ok(())
            }
            CARVEOUT => Err(Fault::new(Code::InvalidValue, format!("carveout {value}: expected -1 to 100"))),
            // Cluster attributes of a launch without clusters.
            10..=LAST if value == 0 => Ok(()),
            10..=LAST => Err(Fault::new(Code::NotSupported, "thread block clusters are not emulated")),
            _ => Err(Fault::new(Code::InvalidValue, format!("function attribute {attribute} can't be set"))),
        }
    }

    /// `cuCtxGetLimit`: what was set, or a card's usual default. Nothing here depends on them.
    pub fn limit(&self, limit: u32) -> Result<usize> {
        let default = match limit {
            0 => 1024,    // stack of a thread
            1 => 1 << 20, // printf buffer
            2 => 8 << 20, // heap
            3 => 2,       // depth of device-side waits
            4 => 2048,    // pending device-side launches
            5 => 64,      // L2 fetch granularity
            6 => 0,       // persisting L2
            _ => return Err(Fault::new(Code::UnsupportedLimit, format!("limit {limit} is not known"))),
        };
        let context = self.contexts.get(self.current()?)?;
        Ok(context.limits.get(&limit).copied().unwrap_or(default))
    }

    pub fn set_limit(&mut self, limit: u32, value: usize) -> Result<()> {
        self.limit(limit)?;
        let context = self.current()?;
        self.contexts.get_mut(context)?.limits.insert(limit, value);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_card_reports_its_limits() {
        let card = Card::named("rtx4090").unwrap();
        let get = |attribute| device(&card, attribute).unwrap();
        assert_eq!((get(75), get(76)), (8, 9));
        assert_eq!((get(1), get(2), get(4), get(5), get(6)), (1024, 1024, 64, 2_147_483_647, 65_535));
        assert_eq!((get(8), get(97), get(16), get(10)), (49_152, 101_376, 128, 32));
        assert_eq!(get(120), 0, "no clusters");
        assert_eq!((get(87), device(&Card::named("h200").unwrap(), 87)), (64, Ok(2)), "f32 to f64");
        assert!(device(&card, 0).is_err() && device(&card, 148).is_err() && device(&card, -1).is_err());
    }
}
