//! `config.json`: a model's configuration under Hugging Face keys.
//!
//! | `model_type` | is |
//! |---|---|
//! | `qwen3` | Pre-LN, RMSNorm, RoPE, SwiGLU, no biases, with QK-Norm |
//! | `llama` | the same without QK-Norm |
//! | `handgrad_classic` | any other combination, every switch spelled out |
//!
//! Two keys are ours, so that a configuration comes back exactly as it was: `handgrad_init` and
//! `handgrad_scale_residual_init`. Settings that would make another model than the one built here (other scalings of RoPE,
//! sliding windows, attention biases, other activations, quantised weights) are refused, never ignored.
//!
//! Sizes have to be there. What else a file leaves out is what the class in `transformers` takes then:
//!
//! | key | `LlamaConfig` | `Qwen3Config` |
//! |---|---|---|
//! | `max_position_embeddings` | 2048 | 32768 |
//! | `num_key_value_heads`     | `num_attention_heads` | 32; of `null`, `num_attention_heads` |
//! | `head_dim`                | `hidden_size / num_attention_heads` | 128 |
//! | `rms_norm_eps`            | 1e-6 | 1e-6 |
//! | `rope_theta`              | 10000 | 10000 |
//! | `tie_word_embeddings`, `attention_bias`, `mlp_bias`, `use_sliding_window` | false | false |
//! | `hidden_act`              | silu | silu |
//! | `eos_token_id`            | 2 | none |

mod rope;

use super::{read_json, write_json};
use crate::nn::config::{FeedForwardKind, Init, ModelConfig, NormKind, NormPosition, Positions};
use crate::shown::{shown, shown_path};
use anyhow::{Context, Result, bail, ensure};
use serde_json::{Map, Value, json};
use std::path::Path;

/// The classes' defaults, see above.
const LLAMA_CONTEXT: usize = 2048;
const QWEN3_CONTEXT: usize = 32768;
const QWEN3_KV_HEADS: usize = 32;
const QWEN3_HEAD_DIM: usize = 128;
const RMS_NORM_EPS: f64 = 1e-6;
const LLAMA_END_OF_TEXT: u32 = 2;
/// The standard deviation of initial weights where a file does not say. It matters to new models only.
const INITIALIZER_RANGE: f64 = 0.02;

/// Reads and validates a configuration. Errors, each with the file: it cannot be read; it is not JSON; what
/// [`from_json`] refuses.
pub fn read(path: &Path) -> Result<ModelConfig> {
    from_json(&read_json(path)?).with_context(|| shown_path(path))
}

/// Writes a configuration atomically, with the ids of special tokens under their keys. Error: the file cannot be written.
pub fn write(path: &Path, config: &ModelConfig, special_ids: &[(&str, Option<u32>)]) -> Result<()> {
    let mut json = to_json(config);
    for (key, id) in special_ids {
        json[key] = json!(id);
    }
    write_json(path, &json)
}

/// `eos_token_id` of a file that leaves it out. A file of our own says what it means; the class for Llama has an id.
pub(super) fn default_end_of_text(json: &Value) -> Value {
    let llama = json["model_type"] == Family::Llama.names().0 && json.get("handgrad_init").is_none();
    if llama { json!(LLAMA_END_OF_TEXT) } else { Value::Null }
}

/// The architectures that files tell apart.
#[derive(Clone, Copy, PartialEq)]
enum Family {
    Qwen3,
    Llama,
    Classic,
}

impl Family {
    fn of(config: &ModelConfig) -> Family {
        let modern = config.norm_position == NormPosition::Pre
            && config.norm == NormKind::RmsNorm
            && config.feed_forward == FeedForwardKind::SwiGlu
            && config.positions == Positions::Rope
            && !config.bias;
        match (modern, config.qk_norm) {
            (true, true) => Family::Qwen3,
            (true, false) => Family::Llama,
            (false, _) => Family::Classic,
        }
    }

    /// `model_type` and the entry of `architectures`.
    fn names(self) -> (&'static str, &'static str) {
        match self {
            Family::Qwen3 => ("qwen3", "Qwen3ForCausalLM"),
            Family::Llama => ("llama", "LlamaForCausalLM"),
            Family::Classic => ("handgrad_classic", "HandgradClassicForCausalLM"),
        }
    }

    fn parse(model_type: &str) -> Result<Family> {
        let all = [Family::Qwen3, Family::Llama, Family::Classic];
        let family = all.into_iter().find(|family| family.names().0 == model_type);
        family.with_context(|| {
            format!("model_type: found '{}', expected qwen3, llama or handgrad_classic", shown(model_type))
        })
    }
}

const NORM_POSITIONS: [(&str, NormPosition); 2] = [("pre", NormPosition::Pre), ("post", NormPosition::Post)];
const NORMS: [(&str, NormKind); 2] = [("rms_norm", NormKind::RmsNorm), ("layer_norm", NormKind::LayerNorm)];
const FEED_FORWARDS: [(&str, FeedForwardKind); 2] =
    [("swiglu", FeedForwardKind::SwiGlu), ("gelu", FeedForwardKind::Gelu)];
const POSITIONS: [(&str, Positions); 2] = [("rope", Positions::Rope), ("absolute", Positions::Absolute)];

/// The word for a switch's value.
fn word<T: PartialEq>(words: &[(&'static str, T)], value: T) -> &'static str {
    words.iter().find(|(_, v)| *v == value).map_or("", |(word, _)| word)
}

/// The file's content for a configuration.
pub fn to_json(config: &ModelConfig) -> Value {
    let family = Family::of(config);
    let (model_type, architecture) = family.names();
    let mut json = json!({
        "architectures": [architecture],
        "model_type": model_type,
        "vocab_size": config.vocab_size,
        "max_position_embeddings": config.max_seq_len,
        "num_hidden_layers": config.n_layer,
        "num_attention_heads": config.n_head,
        "num_key_value_heads": config.n_kv_head,
        "hidden_size": config.n_embd,
        "head_dim": config.head_dim,
        "intermediate_size": config.n_ff,
        "rope_theta": config.rope_theta,
        "tie_word_embeddings": config.tie_embeddings,
        "torch_dtype": "float32",
    });
    match family {
        Family::Classic => {
            json["norm_position"] = json!(word(&NORM_POSITIONS, config.norm_position));
            json["norm"] = json!(word(&NORMS, config.norm));
            json["norm_eps"] = json!(config.norm_eps);
            json["feed_forward"] = json!(word(&FEED_FORWARDS, config.feed_forward));
            json["position_embedding"] = json!(word(&POSITIONS, config.positions));
            json["qk_norm"] = json!(config.qk_norm);
            json["bias"] = json!(config.bias);
        }
        Family::Qwen3 | Family::Llama => {
            json["rms_norm_eps"] = json!(config.norm_eps);
            json["hidden_act"] = json!("silu");
            json["attention_bias"] = json!(false);
            json["mlp_bias"] = json!(false);
        }
    }
    if let Init::Normal { std } | Init::TruncatedNormal { std } = config.init {
        json["initializer_range"] = json!(std);
    }
    if let Value::Object(map) = &mut json {
        rope::write(config.rope_scaling, map);
    }
    json["handgrad_init"] = json!(config.init.name().replace('-', "_"));
    json["handgrad_scale_residual_init"] = json!(config.scale_residual_init);
    json
}

/// The configuration in a file's content, validated. Errors, each with the key, the value found and what was expected:
/// a key that is missing or of another type; a model that is not supported; sizes that do not go together.
pub fn from_json(json: &Value) -> Result<ModelConfig> {
    let Value::Object(map) = json else { bail!("found JSON that is not an object, expected a model's configuration") };
    let keys = Keys(map);
    let family = Family::parse(keys.required("model_type", "a string", Value::as_str)?)?;
    let classic = family == Family::Classic;
    if !classic {
        refuse_other_models(&keys)?;
    }
    let (n_head, n_embd) = (keys.size("num_attention_heads")?, keys.size("hidden_size")?);
    let n_kv_head = match keys.optional("num_key_value_heads", "a whole number", as_size)? {
        Some(heads) => heads,
        None if family == Family::Qwen3 && !map.contains_key("num_key_value_heads") => QWEN3_KV_HEADS,
        None => n_head,
    };
    let head_dim = match keys.optional("head_dim", "a whole number", as_size)? {
        Some(head_dim) => head_dim,
        None if family == Family::Qwen3 => QWEN3_HEAD_DIM,
        None => ModelConfig::default_head_dim(n_embd, n_head)?,
    };
    let max_seq_len = match family {
        Family::Classic => keys.size("max_position_embeddings")?,
        Family::Llama => keys.size_or("max_position_embeddings", LLAMA_CONTEXT)?,
        Family::Qwen3 => keys.size_or("max_position_embeddings", QWEN3_CONTEXT)?,
    };
    let (rope_theta, rope_scaling) = rope::read(&keys, head_dim, max_seq_len)?;
    let config = ModelConfig {
        vocab_size: keys.size("vocab_size")?,
        max_seq_len,
        n_layer: keys.size("num_hidden_layers")?,
        n_head,
        n_kv_head,
        n_embd,
        head_dim,
        n_ff: keys.size("intermediate_size")?,
        rope_theta,
        rope_scaling,
        norm_eps: match classic {
            true => keys.required("norm_eps", "a number", Value::as_f64)?,
            false => keys.optional("rms_norm_eps", "a number", Value::as_f64)?.unwrap_or(RMS_NORM_EPS),
        },
        norm_position: if classic { keys.switch("norm_position", &NORM_POSITIONS)? } else { NormPosition::Pre },
        norm: if classic { keys.switch("norm", &NORMS)? } else { NormKind::RmsNorm },
        feed_forward: if classic { keys.switch("feed_forward", &FEED_FORWARDS)? } else { FeedForwardKind::SwiGlu },
        positions: if classic { keys.switch("position_embedding", &POSITIONS)? } else { Positions::Rope },
        qk_norm: if classic { keys.flag("qk_norm")? } else { family == Family::Qwen3 },
        tie_embeddings: match classic {
            true => keys.flag("tie_word_embeddings")?,
            false => keys.optional("tie_word_embeddings", "true or false", Value::as_bool)?.unwrap_or(false),
        },
        bias: if classic { keys.flag("bias")? } else { false },
        init: init(&keys)?,
        scale_residual_init: keys
            .optional("handgrad_scale_residual_init", "true or false", Value::as_bool)?
            .unwrap_or(false),
    };
    config.validate()?;
    Ok(config)
}

/// Refuses what `qwen3` and `llama` files can ask for and the model here does not have.
fn refuse_other_models(keys: &Keys) -> Result<()> {
    let act = keys.optional("hidden_act", "a string", Value::as_str)?.unwrap_or("silu");
    ensure!(act == "silu" || act == "swish", "hidden_act: found '{}', expected silu", shown(act));
    for key in ["attention_bias", "mlp_bias", "use_sliding_window"] {
        let on = keys.optional(key, "true or false", Value::as_bool)?.unwrap_or(false);
        ensure!(!on, "{key}: found true, expected false");
    }
    if let Some(found) = keys.0.get("quantization_config").filter(|value| !value.is_null()) {
        bail!("quantization_config: found {}, expected weights that are not quantised", shown(found));
    }
    let layers = keys.optional("layer_types", "a list", Value::as_array)?;
    if let Some(other) = layers.into_iter().flatten().find(|layer| *layer != "full_attention") {
        bail!("layer_types: found {}, expected \"full_attention\" in every layer", shown(other));
    }
    Ok(())
}

fn init(keys: &Keys) -> Result<Init> {
    let std = keys.optional("initializer_range", "a number", Value::as_f64)?.unwrap_or(INITIALIZER_RANGE);
    let name = match keys.optional("handgrad_init", "a string", Value::as_str)?.unwrap_or("normal") {
        short @ ("xavier" | "he") => format!("{short}-normal"), // as they were written once
        name => name.replace('_', "-"),
    };
    Ok(match Init::of_name(&name).context("handgrad_init")? {
        Init::Normal { .. } => Init::Normal { std },
        Init::TruncatedNormal { .. } => Init::TruncatedNormal { std },
        other => other,
    })
}

/// A JSON object whose values are asked for by key and type. `null` is as good as absent.
struct Keys<'a>(&'a Map<String, Value>);

impl<'a> Keys<'a> {
    fn optional<T>(&self, key: &str, expected: &str, get: impl Fn(&'a Value) -> Option<T>) -> Result<Option<T>> {
        match self.0.get(key) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => {
                get(value).map(Some).with_context(|| format!("{key}: found {}, expected {expected}", shown(value)))
            }
        }
    }

    fn required<T>(&self, key: &str, expected: &str, get: impl Fn(&'a Value) -> Option<T>) -> Result<T> {
        self.optional(key, expected, get)?.with_context(|| format!("{key}: missing, expected {expected}"))
    }

    fn size(&self, key: &str) -> Result<usize> {
        self.required(key, "a whole number", as_size)
    }

    fn size_or(&self, key: &str, default: usize) -> Result<usize> {
        Ok(self.optional(key, "a whole number", as_size)?.unwrap_or(default))
    }

    fn flag(&self, key: &str) -> Result<bool> {
        self.required(key, "true or false", Value::as_bool)
    }

    fn switch<T: Copy>(&self, key: &str, words: &[(&str, T)]) -> Result<T> {
        let expected = words.iter().map(|(word, _)| *word).collect::<Vec<_>>().join(" or ");
        self.required(key, &expected, |value| words.iter().find(|(word, _)| value == word).map(|&(_, v)| v))
    }
}

fn as_size(value: &Value) -> Option<usize> {
    value.as_u64().and_then(|n| usize::try_from(n).ok())
}
