//! `handgrad scaling`: the published fits, and the report's two models by them.

use std::process::{Command, Output};

fn scaling(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_handgrad"));
    command.arg("scaling").args(args).env("RUST_BACKTRACE", "0").output().unwrap()
}

fn printed(args: &[&str]) -> String {
    let output = scaling(args);
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn the_report_s_models_are_predicted_beside_what_it_measured() {
    let text = printed(&["predict"]);
    // Recomputed from the fit's numbers by hand: 3.635 and 3.716, where the report measured 3.45 and 3.35.
    for part in
        ["81,801,984", "1,458,438,144", "17.83", "3.45", "3.635", "197,157,888", "3.20", "3.35", "3.716", "above 20"]
    {
        assert!(text.contains(part), "{text}\nexpected {part}");
    }
    let rows: serde_json::Value = serde_json::from_str(&printed(&["predict", "--json"])).unwrap();
    assert_eq!((rows[0]["measured"].as_f64(), rows[1]["params"].as_f64()), (Some(3.45), Some(197_157_888.0)));
}

#[test]
fn any_model_and_any_budget_can_be_asked_for() {
    // Chinchilla itself: 70e9 parameters, 1.4e12 tokens.
    let rows: serde_json::Value =
        serde_json::from_str(&printed(&["predict", "--params", "70e9", "--tokens", "1.4e12", "--json"])).unwrap();
    let loss = rows[0]["predicted"]["Hoffmann 2022"].as_f64().unwrap();
    assert!((loss - (1.69 + 406.4 / 70e9f64.powf(0.34) + 410.7 / 1.4e12f64.powf(0.28))).abs() < 1e-12);
    let text = printed(&["predict", "--flops", "1e18"]);
    assert!(text.contains("8.06e7") || text.contains("8.058e7") || text.contains("8.06"), "{text}");
}

#[test]
fn arguments_that_mean_nothing_are_refused() {
    for (args, part) in [
        (&["predict", "--params", "1e9"][..], "--tokens"),
        (&["predict", "--flops", "0"], "--flops: found 0"),
        (&["predict", "--params", "-3", "--tokens", "1"], "-3"),
        (&["predict", "--flops", "1e18", "--params", "1", "--tokens", "1"], "--flops"),
        (&["guess"], "guess"),
    ] {
        let output = scaling(args);
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(2) && error.contains(part), "{args:?}: {error}");
    }
}
