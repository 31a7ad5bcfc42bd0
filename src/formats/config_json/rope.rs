//! RoPE's settings in `config.json`. They stand in several places: the oldest files have `rope_theta` and `rope_scaling`
//! beside the sizes, those of transformers 5 have all of it in `rope_parameters`.
//!
//! | `rope_type`, of old `type` | its keys |
//! |---|---|
//! | `default` | none |
//! | `linear`  | `factor` |
//! | `llama3`  | `factor`, `low_freq_factor`, `high_freq_factor`, `original_max_position_embeddings` |

use super::{Keys, as_size};
use crate::ops::RopeScaling;
use anyhow::{Context, Result, bail, ensure};
use serde_json::{Map, Value, json};

/// `rope_theta` where a file does not say, in the classes of both families.
const ROPE_THETA: f64 = 10000.0;
/// The objects that may hold the settings.
const PLACES: [&str; 2] = ["rope_parameters", "rope_scaling"];

/// RoPE's base, and how the context was stretched. Errors: two places that differ; a kind or a key that is not computed;
/// channels that are not rotated.
pub(super) fn read(keys: &Keys, head_dim: usize, max_seq_len: usize) -> Result<(f64, RopeScaling)> {
    let mut thetas = vec![];
    thetas
        .extend(keys.optional("rope_theta", "a number", Value::as_f64)?.map(|theta| ("rope_theta".to_string(), theta)));
    let mut scalings = vec![];
    all_channels(keys, head_dim, "")?;
    for place in PLACES {
        let Some(map) = keys.optional(place, "an object", Value::as_object)?.filter(|map| !map.is_empty()) else {
            continue;
        };
        let inner = Keys(map);
        let theta = inner.optional("rope_theta", "a number", Value::as_f64).context(place)?;
        thetas.extend(theta.map(|theta| (format!("{place}.rope_theta"), theta)));
        all_channels(&inner, head_dim, &format!("{place}."))?;
        let original = keys.optional("original_max_position_embeddings", "a whole number", as_size)?;
        scalings.push(scaling(&inner, original, max_seq_len).context(place)?);
    }
    for (place, theta) in thetas.iter().skip(1) {
        let (first, expected) = &thetas[0];
        ensure!(theta == expected, "{place}: found {theta}, expected {expected} as in {first}");
    }
    if let [first, second] = scalings[..] {
        ensure!(first == second, "rope_scaling: found {second:?}, expected {first:?} as in rope_parameters");
    }
    let theta = thetas.first().map_or(ROPE_THETA, |(_, theta)| *theta);
    Ok((theta, scalings.first().copied().unwrap_or(RopeScaling::None)))
}

/// Refuses models that rotate some channels of a head only.
fn all_channels(keys: &Keys, head_dim: usize, place: &str) -> Result<()> {
    let part = keys.optional("partial_rotary_factor", "a number", Value::as_f64)?.unwrap_or(1.0);
    ensure!(part == 1.0, "{place}partial_rotary_factor: found {part}, expected 1: every channel is rotated here");
    let channels = keys.optional("rotary_dim", "a whole number", as_size)?.unwrap_or(head_dim);
    ensure!(
        channels == head_dim,
        "{place}rotary_dim: found {channels}, expected {head_dim} as head_dim: every channel is rotated here"
    );
    Ok(())
}

/// `original`: the context before it was stretched, where it stands beside the other sizes.
fn scaling(keys: &Keys, original: Option<usize>, max_seq_len: usize) -> Result<RopeScaling> {
    let named = |key| keys.optional(key, "a string", Value::as_str);
    let (new, old) = (named("rope_type")?, named("type")?);
    if let (Some(new), Some(old)) = (new, old) {
        ensure!(new == old, "type: found '{old}', expected '{new}' as in rope_type");
    }
    let kind = new.or(old).unwrap_or("default");
    let known: &[&str] = match kind {
        "default" => &[],
        "linear" => &["factor"],
        "llama3" => &["factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"],
        other => bail!("rope_type: found '{}', expected default, linear or llama3", crate::shown::shown(other)),
    };
    let always = ["rope_type", "type", "rope_theta", "partial_rotary_factor", "rotary_dim"];
    for (name, value) in keys.0.iter().filter(|(_, value)| !value.is_null()) {
        ensure!(
            known.contains(&name.as_str()) || always.contains(&name.as_str()),
            "{}: found {}, expected none with rope_type '{kind}'",
            crate::shown::shown(name),
            crate::shown::shown(value)
        );
    }
    let number = |key| keys.required(key, "a number", Value::as_f64);
    Ok(match kind {
        "linear" => RopeScaling::Linear { factor: number("factor")? },
        "llama3" => RopeScaling::Llama3 {
            factor: number("factor")?,
            low_freq_factor: number("low_freq_factor")?,
            high_freq_factor: number("high_freq_factor")?,
            original_max_seq_len: original
                .or(keys.optional("original_max_position_embeddings", "a whole number", as_size)?)
                .unwrap_or(max_seq_len),
        },
        _ => RopeScaling::None,
    })
}

/// The settings that `config.json` has beside `rope_theta`.
pub(super) fn write(scaling: RopeScaling, json: &mut Map<String, Value>) {
    let value = match scaling {
        RopeScaling::None => return,
        RopeScaling::Linear { factor } => json!({"rope_type": "linear", "factor": factor}),
        RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_max_seq_len } => json!({
            "rope_type": "llama3",
            "factor": factor,
            "low_freq_factor": low_freq_factor,
            "high_freq_factor": high_freq_factor,
            "original_max_position_embeddings": original_max_seq_len,
        }),
    };
    json.insert("rope_scaling".to_string(), value);
}
