//! The KV cache: keys and values of all past positions, so that decoding computes one position a step
//! (chapter 8.2.3, report §9.2).
//!
//! It is allocated once for a fixed capacity and holds the KV heads only, which is what GQA saves:
//! 2 · B · L · Hkv · T · D numbers (chapter 8.3).

use super::config::ModelConfig;
use crate::device::Device;
use crate::dtype::DType;
use crate::ops;
use crate::tensor::Tensor;
use anyhow::{Result, ensure};

pub struct KvCache {
    /// Keys (rotated) and values of each layer, `[B,capacity,Hkv,D]`.
    layers: Vec<(Tensor, Tensor)>,
    len: usize,
    capacity: usize,
}

impl KvCache {
    /// An empty cache on `device`, with room for `capacity` positions of `batch` sequences that grow together. Sequences of
    /// different lengths have a cache each. Error: out of memory.
    pub fn new(config: &ModelConfig, batch: usize, capacity: usize, dtype: DType, device: &Device) -> Result<KvCache> {
        let zeros = || Tensor::zeros_on(&[batch, capacity, config.n_kv_head, config.head_dim], dtype, device);
        let layers = (0..config.n_layer).map(|_| Ok((zeros()?, zeros()?))).collect::<Result<_>>()?;
        Ok(KvCache { layers, len: 0, capacity })
    }

    /// Positions held.
    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes of all keys and values.
    pub fn bytes(&self) -> usize {
        self.layers.iter().map(|(k, v)| k.bytes() + v.bytes()).sum()
    }

    /// Writes one layer's new `k`, `v` `[B,T,Hkv,D]` behind the positions held, then lets `q` `[B,T,H,D]` attend to all.
    /// The length grows only at [`advance`](KvCache::advance), once for all layers.
    pub fn attend(&mut self, layer: usize, q: &Tensor, k: &Tensor, v: &Tensor) -> Result<Tensor> {
        let new = k.shape()[1];
        self.check_room(new)?;
        let (keys, values) = &mut self.layers[layer];
        ops::cache_write(keys, k, self.len)?;
        ops::cache_write(values, v, self.len)?;
        ops::attention_cached(q, keys, values, self.len + new)
    }

    /// Counts `new` positions that every layer has written.
    pub fn advance(&mut self, new: usize) {
        debug_assert!(self.len + new <= self.capacity);
        self.len += new;
    }

    /// Error: `new` more positions than there is room for.
    pub fn check_room(&self, new: usize) -> Result<()> {
        let (len, capacity) = (self.len, self.capacity);
        ensure!(
            len + new <= capacity,
            "kv_cache: found {len} cached and {new} new positions, expected at most {capacity} together"
        );
        Ok(())
    }
}
