//! A directory that one process at a time may write.

use crate::shown::shown_path;
use anyhow::{Context, Result, bail};
use std::fs::{File, TryLockError};
use std::path::Path;

/// Keeps other processes out of a directory until it is dropped or its process ends, however that ends.
#[derive(Debug)]
pub struct Lock(File);

impl Lock {
    /// Errors: another process holds the lock; the directory cannot be opened.
    pub fn take(directory: &Path) -> Result<Lock> {
        let place = shown_path(directory);
        let file = File::open(directory).with_context(|| format!("{place}: cannot be read"))?;
        match file.try_lock() {
            // Some file systems have no locks.
            Ok(()) | Err(TryLockError::Error(_)) => Ok(Lock(file)),
            Err(TryLockError::WouldBlock) => {
                bail!("{place}: found another handgrad at work there, expected a directory of this one's own")
            }
        }
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // Closing alone would leave the lock to a process that another thread has just forked, until that one executes.
        let _ = self.0.unlock();
    }
}
