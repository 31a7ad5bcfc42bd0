//! How a training run looks: a bar where standard error is a terminal, else a plain line every log step.

use super::note;
use crate::shown::{message, shown_path};
use crate::train::{Observer, Recipe, StepReport, curves, events};
use indicatif::{ProgressBar, ProgressStyle};
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

pub struct Progress {
    /// The run's directory.
    out: PathBuf,
    view: View,
    recipe: Recipe,
    first_step: usize,
    start: Instant,
}

enum View {
    Quiet,
    Lines,
    Bar(ProgressBar),
}

impl Progress {
    /// `out`: the run's directory; `first_step`: steps that were done before this run.
    pub fn new(out: &Path, recipe: &Recipe, first_step: usize, quiet: bool) -> Progress {
        let dumb = std::env::var("TERM").is_ok_and(|term| term == "dumb");
        let view = match quiet {
            true => View::Quiet,
            false if std::io::stderr().is_terminal() && !dumb => View::Bar(bar(recipe.steps, first_step)),
            false => View::Lines,
        };
        Progress { out: out.to_path_buf(), view, recipe: recipe.clone(), first_step, start: Instant::now() }
    }

    /// Takes the bar away.
    pub fn finish(&self) {
        if let View::Bar(bar) = &self.view {
            bar.finish_and_clear();
        }
    }

    /// A line above the bar.
    pub fn say(&self, line: &str) {
        match &self.view {
            View::Quiet => {}
            View::Lines => note(line),
            View::Bar(bar) => bar.println(line),
        }
    }

    /// Draws the run as far as it has come. What cannot be drawn is told of, and no reason to stop.
    pub fn draw(&self) {
        if let Err(error) = events::write(&self.out).and_then(|()| curves::write(&self.out)) {
            self.say(&message(format_args!("handgrad: warning: {error:#}")));
        }
    }

    fn time_left(&self, step: usize) -> String {
        let done = (step - self.first_step).max(1) as u32;
        clock(self.start.elapsed() / done * (self.recipe.steps - step) as u32)
    }
}

impl Observer for Progress {
    fn step(&mut self, report: &StepReport, tokens_per_s: f64) {
        let StepReport { step, loss, lr, grad_norm, .. } = *report;
        let numbers = format!("loss {loss:.4}  gradient {grad_norm:.2}  lr {lr:.2e}  {tokens_per_s:.0} tokens/s");
        match &self.view {
            View::Quiet => {}
            View::Bar(bar) => {
                bar.set_message(format!("{numbers}  {} left", self.time_left(step)));
                bar.set_position(step as u64);
            }
            // Every log step would be too many lines to read; about forty tell the story.
            View::Lines if step.is_multiple_of(self.lines_every()) || step == 1 => {
                note(&format!("step {step}/{}  {numbers}  {} left", self.recipe.steps, self.time_left(step)));
            }
            View::Lines => {}
        }
    }

    fn evaluated(&mut self, step: usize, val_loss: f64) {
        self.say(&format!("step {step}: validation loss {val_loss:.4}"));
    }

    fn ending(&mut self) {
        self.draw();
    }

    fn saved(&mut self, step: usize, dir: &Path) {
        self.say(&format!("step {step}: saved {}", shown_path(dir)));
        if step < self.recipe.steps {
            self.draw(); // the last time was before the last checkpoint
        }
    }

    fn warning(&mut self, line: &str) {
        self.say(&message(format_args!("handgrad: warning: {line}")));
    }
}

impl Progress {
    fn lines_every(&self) -> usize {
        let log_every = self.recipe.log_every;
        (self.recipe.steps / 40).div_ceil(log_every).max(1) * log_every
    }
}

fn bar(steps: usize, first_step: usize) -> ProgressBar {
    let template = "{bar:30} {pos}/{len}  {msg}";
    let style = ProgressStyle::with_template(template).expect("a valid template").progress_chars("█▌ ");
    ProgressBar::new(steps as u64).with_style(style).with_position(first_step as u64)
}

/// 1:02:03, or 2:03.
fn clock(time: Duration) -> String {
    let s = time.as_secs();
    if s >= 3600 {
        format!("{}:{:02}:{:02}", s / 3600, s / 60 % 60, s % 60)
    } else {
        format!("{}:{:02}", s / 60, s % 60)
    }
}
