//! Generation: prefill the prompt once, then one new token a step (chapter 8.2.3, report §7.5 and §9.2).

pub mod sampler;

pub use sampler::Sampler;

use crate::nn::{KvCache, Transformer};
use crate::tape::{Tape, Var};
use crate::tensor::Tensor;
use anyhow::{Result, bail, ensure};

/// What to generate from.
pub struct Request<'a> {
    /// Token ids, at least one.
    pub prompt: &'a [u32],
    /// Most new tokens.
    pub max_new: usize,
    /// The ids that end a text; none of them is given out.
    pub end_of_text: &'a [u32],
    /// Ids below this one have a token; the model's vocabulary may be larger, and the rest is never chosen.
    pub vocab_size: usize,
    /// Whether to keep keys and values, or to compute the whole sequence again for each token.
    pub use_cache: bool,
}

/// Why generation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    MaxNew,
    EndOfText,
    /// `on_token` asked for it.
    Interrupted,
}

/// Generates tokens one by one; `on_token` gets each as it comes and returns whether to go on.
///
/// Errors: those of [`check`], before any work; a prompt's id that the model does not have; logits that are not finite;
/// no memory for a cache; whatever `on_token` returns.
pub fn generate(
    model: &Transformer,
    request: &Request,
    sampler: &mut Sampler,
    mut on_token: impl FnMut(u32) -> Result<bool>,
) -> Result<Stop> {
    let mut on_tokens = |_: usize, token: u32| on_token(token);
    let stops = generate_batch(model, std::slice::from_ref(request), sampler, &mut on_tokens)?;
    Ok(stops[0])
}

/// One of several sequences that are continued together.
struct Sequence<'a> {
    request: &'a Request<'a>,
    /// The place in the list of requests.
    place: usize,
    /// Prompt and new tokens; the last one was not yet fed to the model.
    ids: Vec<u32>,
    cache: Option<KvCache>,
}

/// [`generate`] for several prompts, of any lengths: each is read alone, then all that have not ended get their next token
/// in one step of the model. With temperature 0 each gets the tokens that it would get alone. `on_token` gets the prompt's
/// number with the token; where it returns false, all end.
///
/// Errors: those of [`check`] for any request, before any work; a prompt's id that the model does not have; logits that
/// are not finite; no memory for a cache; whatever `on_token` returns.
pub fn generate_batch(
    model: &Transformer,
    requests: &[Request],
    sampler: &mut Sampler,
    on_token: &mut dyn FnMut(usize, u32) -> Result<bool>,
) -> Result<Vec<Stop>> {
    requests.iter().try_for_each(|request| check(model, request))?;
    let mut stops = vec![Stop::MaxNew; requests.len()];
    let (mut sequences, mut tokens) = (vec![], vec![]);
    for (place, request) in requests.iter().enumerate().filter(|(_, request)| request.max_new > 0) {
        // The last token is given out, but never fed back.
        let capacity = request.prompt.len() + request.max_new - 1;
        let new_cache = || KvCache::new(&model.config, 1, capacity, model.dtype(), &model.device());
        let mut sequence = Sequence {
            request,
            place,
            ids: request.prompt.to_vec(),
            cache: request.use_cache.then(new_cache).transpose()?,
        };
        let logits = last_logits(model, &[request.prompt], sequence.cache.as_mut_slice())?; // [1,V]
        tokens.push(sampler.sample(&logits, request.vocab_size.min(model.config.vocab_size), 0)?[0]);
        sequences.push(sequence);
    }
    for step in 1.. {
        let mut going = vec![];
        for (mut sequence, token) in sequences.into_iter().zip(tokens) {
            if sequence.request.end_of_text.contains(&token) {
                stops[sequence.place] = Stop::EndOfText;
                continue;
            }
            if !on_token(sequence.place, token)? {
                return Ok(vec![Stop::Interrupted; requests.len()]);
            }
            sequence.ids.push(token);
            if step < sequence.request.max_new {
                going.push(sequence);
            }
        }
        if going.is_empty() {
            break;
        }
        tokens = next_tokens(model, &mut going, sampler, step)?;
        sequences = going;
    }
    Ok(stops)
}

/// The token that follows each sequence: the model is fed the last one, or all of them where there is no cache.
fn next_tokens(model: &Transformer, going: &mut [Sequence], sampler: &mut Sampler, step: usize) -> Result<Vec<u32>> {
    let vocab_size = going[0].request.vocab_size.min(model.config.vocab_size);
    if going.iter().any(|sequence| sequence.cache.is_none()) {
        let choose = |sequence: &mut Sequence| {
            let logits = last_logits(model, &[&sequence.ids], &mut [])?; // [1,V]
            Ok(sampler.sample(&logits, vocab_size, step)?[0])
        };
        return going.iter_mut().map(choose).collect();
    }
    let mut caches: Vec<KvCache> = going.iter_mut().filter_map(|sequence| sequence.cache.take()).collect();
    let last: Vec<&[u32]> = going.iter().map(|sequence| &sequence.ids[sequence.ids.len() - 1..]).collect();
    let logits = last_logits(model, &last, &mut caches)?; // [B,V]
    for (sequence, cache) in going.iter_mut().zip(caches) {
        sequence.cache = Some(cache);
    }
    sampler.sample(&logits, vocab_size, step)
}

/// Refuses a request that cannot be met.
///
/// Errors: an empty prompt; prompt and `max_new` together longer than the model's `max_seq_len`.
pub fn check(model: &Transformer, request: &Request) -> Result<()> {
    let (prompt, max_new, max) = (request.prompt.len(), request.max_new, model.config.max_seq_len);
    ensure!(prompt > 0, "generate: found an empty prompt, expected at least one token");
    ensure!(
        max_new <= max.saturating_sub(prompt) && prompt <= max,
        "generate: found {prompt} prompt tokens and {max_new} new ones, expected at most {max} together (the model's context length)"
    );
    Ok(())
}

/// The logits `[B,V]` that follow the last of each sequence's `ids`, all of one length, which come behind what the caches
/// hold; they lie where the model does. Errors: as [`Transformer::hidden`].
pub fn last_logits(model: &Transformer, ids: &[&[u32]], caches: &mut [KvCache]) -> Result<Tensor> {
    let mut tape = Tape::inference();
    let (b, t) = (ids.len(), ids.first().map_or(0, |ids| ids.len()));
    let ids = Tensor::from_vec(ids.concat(), &[b, t])?;
    let hidden = model.hidden(&mut tape, &ids, caches)?; // [B,T,C]
    // The head is the largest product, and only the last row of each sequence is needed.
    let channels = model.config.n_embd;
    let last = match (b, t) {
        (_, 1) => hidden.value().reshape(&[b, channels])?,
        (1, _) => hidden.value().reshape(&[t, channels])?.rows(t - 1..t)?,
        _ => bail!("generate: found {b} sequences of {t} tokens, expected one, or one token each"),
    }; // [B,C]
    Ok(model.logits(&mut tape, &Var::constant(last))?.value().clone())
}
