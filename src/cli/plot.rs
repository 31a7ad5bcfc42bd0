//! `handgrad plot`

use super::argument;
use crate::figure;
use crate::shown::shown_path;
use crate::train::curves::panels;
use anyhow::{Result, anyhow};
use clap::Args;
use std::path::PathBuf;

#[derive(Args)]
pub struct PlotArgs {
    /// Directories of training runs, drawn into one picture
    #[arg(value_name = "DIR", required = true)]
    runs: Vec<PathBuf>,
    /// The picture, .svg or .png
    #[arg(long, value_name = "FILE", default_value = "curves.svg")]
    out: PathBuf,
}

/// Draws loss, learning rate, gradient norm and speed by step. Errors: a directory without metrics; a picture that cannot be
/// written.
pub fn run(args: PlotArgs, quiet: bool) -> Result<u8> {
    let known = args.out.extension().is_some_and(|ending| ending == "svg" || ending == "png");
    if !known {
        return argument(Err(anyhow!("--out {}: expected a name that ends in .svg or .png", shown_path(&args.out))));
    }
    figure::write(&args.out, &panels(&args.runs)?)?;
    super::say(&format!("{} runs in {}", args.runs.len(), shown_path(&args.out)), quiet);
    Ok(0)
}
