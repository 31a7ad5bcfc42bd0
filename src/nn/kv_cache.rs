//! The KV cache: keys and values of all past positions, so that decoding computes one position a step
//! (chapter 8.2.3, report §9.2).
//!
//! It is allocated once for a fixed capacity and holds the KV heads only, which is what GQA saves:
//! 2 · B · L · Hkv · T · D numbers (chapter 8.3).

use super::config::ModelConfig;
use crate::dtype::{DType, Element};
use crate::ops;
use crate::tensor::Tensor;
use anyhow::{Result, bail, ensure};

pub struct KvCache {
    /// Keys (rotated) and values of each layer, `[B,capacity,Hkv,D]`.
    layers: Vec<(Tensor, Tensor)>,
    len: usize,
    capacity: usize,
}

impl KvCache {
    /// An empty cache with room for `capacity` positions of `batch` sequences.
    pub fn new(config: &ModelConfig, batch: usize, capacity: usize, dtype: DType) -> KvCache {
        let zeros = || Tensor::zeros(&[batch, capacity, config.n_kv_head, config.head_dim], dtype);
        KvCache { layers: (0..config.n_layer).map(|_| (zeros(), zeros())).collect(), len: 0, capacity }
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
        for (cached, new) in [(&mut *keys, k), (&mut *values, v)] {
            let (room, found) = (cached.shape().to_vec(), new.shape());
            let fits = found.len() == 4 && found[0] == room[0] && found[2..] == room[2..];
            ensure!(fits, "kv_cache: found keys or values {found:?}, expected [{},T,{},{}]", room[0], room[2], room[3]);
            match new.dtype() {
                DType::F32 => write_at::<f32>(cached, new, self.len)?,
                DType::F64 => write_at::<f64>(cached, new, self.len)?,
                dtype => bail!("kv_cache: found dtype {dtype}, expected f32 or f64 on the CPU"),
            }
        }
        ops::attention_cached(q, keys, values, self.len + new)
    }

    /// Counts `new` positions that every layer has written.
    pub fn advance(&mut self, new: usize) {
        debug_assert!(self.len + new <= self.capacity);
        self.len += new;
    }

    pub fn check_room(&self, new: usize) -> Result<()> {
        let (len, capacity) = (self.len, self.capacity);
        ensure!(
            len + new <= capacity,
            "kv_cache: found {len} cached and {new} new positions, expected at most {capacity} together"
        );
        Ok(())
    }
}

/// Copies `new` `[B,T,Hkv,D]` into `cached` `[B,capacity,Hkv,D]` from position `start` on.
fn write_at<E: Element>(cached: &mut Tensor, new: &Tensor, start: usize) -> Result<()> {
    let (capacity, t) = (cached.shape()[1], new.shape()[1]);
    let row = new.shape()[2] * new.shape()[3];
    let new = new.as_slice::<E>()?;
    let cached = cached.as_mut_slice::<E>()?;
    for (b, new) in new.chunks_exact((t * row).max(1)).enumerate() {
        cached[(b * capacity + start) * row..][..t * row].copy_from_slice(new);
    }
    Ok(())
}
