//! Windows of a token row: drawn at random for training, in order for evaluation.

use super::tokens::TokenRow;
use crate::Tensor;
use anyhow::{Result, ensure};
use rand::RngExt;
use rand_chacha::ChaCha8Rng;

/// Ids and what should follow each of them.
#[derive(Clone, Debug)]
pub struct Batch {
    /// u32 `[B,T]`.
    pub ids: Tensor,
    /// u32 `[B,T]`: the token after each id.
    pub targets: Tensor,
}

impl Batch {
    /// How many targets count: all but those that are [`IGNORE_INDEX`](crate::ops::IGNORE_INDEX). Error: ids on a card.
    pub fn counted(&self) -> Result<usize> {
        Ok(self.targets.as_slice::<u32>()?.iter().filter(|&&target| target as i32 != crate::ops::IGNORE_INDEX).count())
    }

    /// Windows of `t` tokens at the given starts, each of which has `t + 1` tokens from there on. Error: a file that
    /// cannot be read any more.
    fn windows(tokens: &(impl TokenRow + ?Sized), starts: impl Iterator<Item = usize>, t: usize) -> Result<Batch> {
        let (mut ids, mut targets, mut rows) = (Vec::new(), Vec::new(), 0);
        let mut window = Vec::with_capacity(t + 1);
        for start in starts {
            window.clear();
            tokens.read(start..start + t + 1, &mut window)?;
            ids.extend_from_slice(&window[..t]);
            targets.extend_from_slice(&window[1..]);
            rows += 1;
        }
        let tensor = |data| Tensor::from_vec::<u32>(data, &[rows, t]);
        Ok(Batch { ids: tensor(ids)?, targets: tensor(targets)? })
    }
}

/// `batch` windows of `t` tokens, each starting anywhere with the same probability, so windows may overlap and repeat.
/// The starts are `0..n-t` for `n` tokens: the last window's last target is the last token.
/// Error: fewer than `t + 1` tokens, a size of 0, or a file that cannot be read any more.
pub fn random_batch(tokens: &(impl TokenRow + ?Sized), batch: usize, t: usize, rng: &mut ChaCha8Rng) -> Result<Batch> {
    check_sizes(batch, t)?;
    check_length("tokens", tokens.len(), t.saturating_add(1), &format!("a window of {t} and the token after it"))?;
    let starts = tokens.len() - t;
    Batch::windows(tokens, (0..batch).map(|_| rng.random_range(0..starts)), t)
}

/// `batch` windows of `t` tokens in order, from number `first` on, and behind the last one the first again: window k begins at
/// token k·t, so that each of the `⌊(n − 1)/t⌋` comes once in a pass. Errors: as [`random_batch`].
pub fn batch_in_order(tokens: &(impl TokenRow + ?Sized), batch: usize, t: usize, first: usize) -> Result<Batch> {
    check_sizes(batch, t)?;
    check_length("tokens", tokens.len(), t.saturating_add(1), &format!("a window of {t} and the token after it"))?;
    let windows = (tokens.len() - 1) / t;
    Batch::windows(tokens, (first..first + batch).map(|k| k % windows * t), t)
}

/// Batches in order that predict every token after the first exactly once, for a loss over a whole text: first all whole
/// batches, of which neighbours share one token, the last target of a row and the first id of the next; then a batch of fewer rows, then a single row of fewer tokens, the last two only if something is left.
/// Errors: fewer than 2 tokens, or a size of 0; of a batch, a file that cannot be read any more.
pub fn whole_batches(
    tokens: &(impl TokenRow + ?Sized),
    batch: usize,
    t: usize,
) -> Result<impl Iterator<Item = Result<Batch>>> {
    check_sizes(batch, t)?;
    check_length("tokens", tokens.len(), 2, "one id and the token after it")?;
    let targets = tokens.len() - 1;
    let (rows, rest) = (targets / t, targets % t);
    let full = (0..rows).step_by(batch).map(move |first| {
        let last = first.saturating_add(batch).min(rows);
        Batch::windows(tokens, (first..last).map(|row| row * t), t)
    });
    let short = (rest > 0).then(|| Batch::windows(tokens, std::iter::once(rows * t), rest));
    Ok(full.chain(short))
}

/// Training and validation tokens: the first `⌊n·(1 - val_fraction)⌋`, and the tail. `val_fraction` 0 keeps all for training.
/// Error: a fraction outside `[0,1)`, or a part shorter than one window, `t + 1` tokens.
pub fn split(tokens: &[u32], val_fraction: f64, t: usize) -> Result<(&[u32], &[u32])> {
    Ok(tokens.split_at(training_part(tokens.len(), val_fraction, t)?))
}

/// Where [`split`] splits a row of `len` tokens. Error: as there.
pub fn training_part(len: usize, val_fraction: f64, t: usize) -> Result<usize> {
    ensure!(
        (0.0..1.0).contains(&val_fraction),
        "validation fraction: found {val_fraction}, expected at least 0 and below 1"
    );
    // A product that should be whole may come out a little above it; that must not cost training a token.
    let exact = len as f64 * val_fraction;
    let val = ((exact * (1.0 - 1e-12)).ceil() as usize).min(len);
    let train = len - val;
    let window = format!("a window of {t} and the token after it; of {len} tokens {val_fraction} are for validation");
    check_length("training tokens", train, t.saturating_add(1), &window)?;
    if val_fraction > 0.0 {
        check_length("validation tokens", val, t.saturating_add(1), &window)?;
    }
    Ok(train)
}

fn check_sizes(batch: usize, t: usize) -> Result<()> {
    ensure!(batch > 0, "batch size: found 0, expected at least 1");
    ensure!(t > 0, "sequence length: found 0, expected at least 1");
    Ok(())
}

fn check_length(what: &str, found: usize, needed: usize, why: &str) -> Result<()> {
    ensure!(found >= needed, "{what}: found {found}, expected at least {needed} ({why})");
    Ok(())
}
