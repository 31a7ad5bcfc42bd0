//! Memory pools: what stream-ordered allocations take from the device (CUDA Driver API, "Stream Ordered Memory Allocator").
//!
//! A simple model. `used` is the bytes of a pool's live allocations, as they were asked for. `reserved` is what the pool took
//! from the device: it grows by what an allocation lacks, as if free memory lay in one piece, and all that is above the
//! release threshold and not in use goes back whenever the host waits. On a card both come in larger units. What a pool
//! keeps is no less free for other allocations: `cuMemGetInfo` counts live allocations alone.

use std::collections::HashMap;

use super::abi::Handle;
use super::state::Driver;
use crate::fault::{Code, Fault, Result};

/// `CUmemPool_attribute`. The first three, of type int, say how memory is used again, which changes nothing here.
const REUSE_FOLLOW_EVENT_DEPENDENCIES: u32 = 1;
const REUSE_ALLOW_INTERNAL_DEPENDENCIES: u32 = 3;
const RELEASE_THRESHOLD: u32 = 4;
const RESERVED_MEM_CURRENT: u32 = 5;
const RESERVED_MEM_HIGH: u32 = 6;
const USED_MEM_CURRENT: u32 = 7;
const USED_MEM_HIGH: u32 = 8;

#[derive(Debug, Default)]
pub struct Pool {
    /// The attributes that are kept only to be read again.
    reuse: HashMap<u32, u64>,
    /// Bytes that stay reserved when the host waits.
    threshold: u64,
    used: u64,
    used_high: u64,
    reserved: u64,
    reserved_high: u64,
}

/// An allocation of a pool.
#[derive(Debug, Clone, Copy)]
pub struct Pooled {
    pub pool: Handle,
    bytes: u64,
    /// The context that owns it.
    owner: u32,
}

impl Pool {
    fn take(&mut self, bytes: u64) {
        self.used += bytes;
        self.used_high = self.used_high.max(self.used);
        self.reserved = self.reserved.max(self.used);
        self.reserved_high = self.reserved_high.max(self.reserved);
    }

    fn give_back(&mut self, bytes: u64) {
        self.used -= bytes;
    }

    /// Gives free memory back to the device until `keep` bytes are left, or what is in use.
    pub fn trim(&mut self, keep: u64) {
        self.reserved = self.reserved.min(keep).max(self.used);
    }

    pub fn attribute(&self, attribute: u32) -> Result<u64> {
        Ok(match attribute {
            REUSE_FOLLOW_EVENT_DEPENDENCIES..=REUSE_ALLOW_INTERNAL_DEPENDENCIES => {
                self.reuse.get(&attribute).copied().unwrap_or(1)
            }
            RELEASE_THRESHOLD => self.threshold,
            RESERVED_MEM_CURRENT => self.reserved,
            RESERVED_MEM_HIGH => self.reserved_high,
            USED_MEM_CURRENT => self.used,
            USED_MEM_HIGH => self.used_high,
            _ => return Err(unknown(attribute)),
        })
    }

    /// Errors: a high-water mark that is set to anything but 0, a number that is only read.
    pub fn set_attribute(&mut self, attribute: u32, value: u64) -> Result<()> {
        match (attribute, value) {
            (REUSE_FOLLOW_EVENT_DEPENDENCIES..=REUSE_ALLOW_INTERNAL_DEPENDENCIES, _) => {
                self.reuse.insert(attribute, value);
            }
            (RELEASE_THRESHOLD, _) => self.threshold = value,
            (RESERVED_MEM_HIGH, 0) => self.reserved_high = self.reserved,
            (USED_MEM_HIGH, 0) => self.used_high = self.used,
            (RESERVED_MEM_HIGH | USED_MEM_HIGH, _) => {
                let message =
                    format!("memory pool attribute {attribute}, a high-water mark: found {value}, expected 0");
                return Err(Fault::new(Code::InvalidValue, message));
            }
            (RESERVED_MEM_CURRENT | USED_MEM_CURRENT, _) => {
                let message = format!("memory pool attribute {attribute} can be read, not set");
                return Err(Fault::new(Code::InvalidValue, message));
            }
            _ => return Err(unknown(attribute)),
        }
        Ok(())
    }
}

fn unknown(attribute: u32) -> Fault {
    Fault::new(Code::InvalidValue, format!("memory pool attribute {attribute} is not known"))
}

impl Driver {
    /// Counts a new allocation as the pool's.
    pub fn take_from_pool(&mut self, pool: Handle, owner: u32, address: u64, bytes: u64) -> Result<()> {
        self.pools.get_mut(pool)?.take(bytes);
        self.pooled.insert(address, Pooled { pool, bytes, owner });
        Ok(())
    }

    /// The same at its end; memory that is no pool's passes. The pool may have been destroyed meanwhile.
    pub fn give_back_to_pool(&mut self, address: u64) {
        if let Some(Pooled { pool, bytes, .. }) = self.pooled.remove(&address)
            && let Ok(pool) = self.pools.get_mut(pool)
        {
            pool.give_back(bytes);
        }
    }

    /// A context ends, and with it all that it owns.
    pub fn give_back_all_to_pools(&mut self, owner: u32) {
        let of_owner = self.pooled.iter().filter(|(_, pooled)| pooled.owner == owner);
        for address in of_owner.map(|(&address, _)| address).collect::<Vec<_>>() {
            self.give_back_to_pool(address);
        }
    }

    /// The host waits: what a pool holds above its threshold goes back to the device.
    pub fn trim_pools(&mut self) {
        for pool in self.pools.select(|_| true) {
            if let Ok(pool) = self.pools.get_mut(pool) {
                pool.trim(pool.threshold);
            }
        }
    }

    /// Allocations of the pool stay; the device's current pool is the default one again.
    pub fn pool_destroy(&mut self, pool: Handle) -> Result<()> {
        if pool == self.default_pool {
            return Err(Fault::new(Code::InvalidValue, "the default memory pool can't be destroyed"));
        }
        self.pools.remove(pool)?;
        if self.current_pool == pool {
            self.current_pool = self.default_pool;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::report::ReportFile;
    use super::super::stream::Null;
    use super::*;
    use crate::card::Card;
    use crate::device::Options;

    /// A driver with a context, and its stream.
    fn driver() -> (Driver, Handle, Handle) {
        let card = Card::named("rtx4090").unwrap();
        let report = ReportFile::from_environment(card.clone());
        let mut driver = Driver::new(card, Options::default(), report);
        let context = driver.context_create(0).unwrap();
        let stream = driver.stream(0, Null::Legacy).unwrap();
        (driver, context, stream)
    }

    /// Reserved, its high-water mark, used, its high-water mark.
    fn numbers(driver: &Driver, pool: Handle) -> [u64; 4] {
        [5, 6, 7, 8].map(|attribute| driver.pools.get(pool).unwrap().attribute(attribute).unwrap())
    }

    #[test]
    fn used_is_what_lives_and_reserved_what_was_taken() {
        let (mut driver, context, stream) = driver();
        let pool = driver.default_pool;
        driver.pools.get_mut(pool).unwrap().set_attribute(RELEASE_THRESHOLD, 300).unwrap();
        let plain = driver.alloc(5000).unwrap();
        assert_eq!(numbers(&driver, pool), [0; 4], "cuMemAlloc takes from no pool");
        let a = driver.alloc_async(200, pool, stream).unwrap();
        let b = driver.alloc_async(300, pool, stream).unwrap();
        assert_eq!(numbers(&driver, pool), [500, 500, 500, 500]);
        driver.free_async(a, stream).unwrap();
        assert_eq!(numbers(&driver, pool), [500, 500, 300, 500]);
        let a = driver.alloc_async(150, pool, stream).unwrap();
        assert_eq!(numbers(&driver, pool), [500, 500, 450, 500], "it fits what was freed");
        let c = driver.alloc_async(100, pool, stream).unwrap();
        assert_eq!(numbers(&driver, pool), [550, 550, 550, 550], "and this does not");
        for address in [a, b] {
            driver.free_async(address, stream).unwrap();
        }
        assert_eq!(numbers(&driver, pool), [550, 550, 100, 550]);
        driver.context_synchronize(context).unwrap();
        assert_eq!(numbers(&driver, pool), [300, 550, 100, 550], "a wait trims to the threshold");
        for mark in [RESERVED_MEM_HIGH, USED_MEM_HIGH] {
            driver.pools.get_mut(pool).unwrap().set_attribute(mark, 0).unwrap();
        }
        assert_eq!(numbers(&driver, pool), [300, 300, 100, 100]);
        driver.pools.get_mut(pool).unwrap().trim(0);
        assert_eq!(numbers(&driver, pool), [100, 300, 100, 100], "what is in use stays");
        driver.free(c).unwrap();
        driver.free(plain).unwrap();
        assert_eq!(numbers(&driver, pool), [100, 300, 0, 100]);
        driver.context_destroy(context).unwrap();
    }

    #[test]
    fn without_a_threshold_a_wait_gives_all_that_is_free_back() {
        let (mut driver, context, stream) = driver();
        let pool = driver.default_pool;
        let a = driver.alloc_async(200, pool, stream).unwrap();
        let b = driver.alloc_async(100, pool, stream).unwrap();
        driver.free_async(a, stream).unwrap();
        driver.wait_for_streams(&[stream]).unwrap();
        assert_eq!(numbers(&driver, pool), [100, 300, 100, 300]);
        driver.free_async(b, stream).unwrap();
        driver.wait_for_streams(&[stream]).unwrap();
        assert_eq!(numbers(&driver, pool), [0, 300, 0, 300]);
        driver.context_destroy(context).unwrap();
    }

    #[test]
    fn each_pool_counts_its_own_and_may_go_before_them() {
        let (mut driver, context, stream) = driver();
        let (default, own) = (driver.default_pool, driver.pools.insert(Pool::default()));
        driver.current_pool = own;
        let (a, b) = (driver.alloc_async(100, default, stream).unwrap(), driver.alloc_async(7, own, stream).unwrap());
        assert_eq!((numbers(&driver, default)[2], numbers(&driver, own)[2]), (100, 7));
        driver.pool_destroy(own).unwrap();
        assert_eq!(driver.current_pool, default);
        assert!(driver.pool_destroy(default).is_err() && driver.pool_destroy(own).is_err());
        driver.free_async(b, stream).unwrap();
        assert_eq!(numbers(&driver, default)[2], 100);
        // What a context still holds at its end is a leak, and no longer in use.
        assert!(driver.context_destroy(context).unwrap_err().message.contains("1 allocation (100 bytes) never freed"));
        assert_eq!((numbers(&driver, default)[2], driver.device.allocation(a).is_ok()), (0, false));
    }

    #[test]
    fn what_cannot_be_set_is_refused() {
        let mut pool = Pool::default();
        for (attribute, value) in [(5, 0), (7, 0), (6, 1), (8, 1), (0, 0), (99, 0)] {
            assert_eq!(pool.set_attribute(attribute, value).unwrap_err().code, Code::InvalidValue, "{attribute}");
        }
        pool.set_attribute(2, 0).unwrap();
        assert_eq!([1, 2, 3, 4].map(|attribute| pool.attribute(attribute).unwrap()), [1, 0, 1, 0]);
        assert!(pool.attribute(0).is_err() && pool.attribute(99).is_err());
    }
}
