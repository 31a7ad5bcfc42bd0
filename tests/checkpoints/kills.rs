//! kill -9 before any operation of the disk, or in the middle of a write.

use super::*;
use rand::RngExt;
use std::os::unix::process::ExitStatusExt;

#[test]
fn a_killed_run_goes_on_as_if_nothing_had_happened() {
    let mut rng = rng();
    let expected = Place::after(3);
    let place = Place::new();
    let operations = PARTS.map(|part| place.operations(part));
    for round in 0..rounds("KILLS", 20) {
        let place = Place::new();
        let mut last = None;
        for (part, operations) in PARTS.iter().zip(operations) {
            let at = rng.random_range(1..=operations);
            let output = place.train(part, &[("DISK_KILL", at.to_string())]);
            let what = format!("round {round}: {part:?}, killed at operation {at} of {operations}");
            assert_eq!(output.status.signal(), Some(9), "{what}: {}", String::from_utf8_lossy(&output.stderr));
            let step = place.step();
            assert!(step >= last, "{what}: step {step:?} after {last:?}");
            // And again while it is resumed.
            if step.is_some() && rng.random() {
                place.train(part, &[("DISK_KILL", rng.random_range(1..=operations).to_string())]);
                assert!(place.step() >= step, "{what}, then again: step {:?} after {step:?}", place.step());
            }
            place.finish(part);
            last = place.step();
        }
        assert_same(&place, &expected, |_| true, &format!("round {round}"));
    }
}
