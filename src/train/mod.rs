//! Training (chapter 8.2.3, report §7): batches in, a model directory and metrics out.
//!
//! ```text
//! tokens → random_batch → Transformer::loss → Tape::backward → clip_grad_norm → AdamW::step → metrics.jsonl
//! ```

pub mod curves;
pub mod directory;
pub mod events;
pub mod memory;
pub mod metrics;
pub mod recipe;
pub mod run;
pub mod scaling;
pub mod start;
pub mod state;
pub mod trainer;

pub use recipe::{BadSetting, Recipe};
pub use run::{Observer, Outcome, Run};
pub use start::{Model, Placement, Resume, Setup, VAL_FRACTION};
pub use trainer::{StepReport, Submitted, Trainer};
