//! What a training run leaves: its state and its log.

use crate::{Reader, fuzz, scratch};
use anyhow::anyhow;
use handgrad::shown::message;
use handgrad::train::Recipe;
use handgrad::train::metrics::Metrics;
use handgrad::train::state::{self, Source, TrainerState};
use std::collections::BTreeMap;

#[test]
fn states_of_a_trainer() {
    let dir = scratch();
    let path = dir.path().join("trainer_state.json");
    let state = TrainerState {
        step: 3,
        finished: false,
        run: "0123456789abcdef".to_string(),
        source: Source { data: Some("/data/a.txt".to_string()), tokens: 1000, val_fraction: 0.1, ..Source::default() },
        recipe: Recipe::preset("chapter8").unwrap(),
        skipped: Default::default(),
        best: None,
        files: BTreeMap::from([("config.json".to_string(), "00".repeat(32))]),
    };
    let without = TrainerState { files: BTreeMap::new(), ..state.clone() };
    let originals = [&state, &without].map(|state| serde_json::to_vec_pretty(state).unwrap());
    let load = || {
        let read = state::read_whole(dir.path()).and_then(|state| state.recipe.validate());
        read.map_err(|error| anyhow!("{}", message(format_args!("{error:#}")))) // as the program prints it
    };
    fuzz(&Reader { name: "trainer_state.json", share: 1, mib: 1, file: &path, load: &load }, &originals);
}

#[test]
fn logs() {
    let dir = scratch();
    let path = dir.path().join("metrics.jsonl");
    let line = |step: usize| {
        format!(
            "{{\"step\":{step},\"tokens\":768,\"loss\":4.5,\"lr\":1e-5,\"grad_norm\":1.0,\"tokens_per_s\":100.5}}\n"
        )
    };
    let lines: String = (1..8).map(line).collect();
    let originals = [lines.clone().into_bytes(), (lines + "{\"step\":8,\"val_loss\":4.0}\n{\"step\":").into_bytes()];
    let load = || {
        let mut log = Metrics::open(&path, Some(5))?;
        log.evaluation(5, 768, 4.5)?;
        log.flush()
    };
    fuzz(&Reader { name: "metrics.jsonl", share: 4, mib: 2, file: &path, load: &load }, &originals);
}
