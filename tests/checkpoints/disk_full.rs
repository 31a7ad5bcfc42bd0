//! A disk that is full, read-only or broken for a while, or from some operation on.

use super::*;
use rand::RngExt;

#[test]
fn a_full_disk_costs_no_checkpoint_and_no_line() {
    let mut rng = rng();
    let expected = Place::after(3);
    let place = Place::after(2);
    let operations = place.operations(PARTS[2]);
    let mut went_on = 0;
    for round in 0..rounds("FULL_DISKS", 20) {
        let place = Place::after(2);
        let from = rng.random_range(1..=operations);
        let for_good: bool = rng.random();
        let until = if for_good { usize::MAX } else { from + rng.random_range(0..8) };
        let what = format!("round {round}: no writing from operation {from} of {operations} to {until}");
        // ENOSPC, EACCES, EROFS, EIO
        let number = [28, 13, 30, 5][rng.random_range(0..4)].to_string();
        let settings = [("DISK_FULL", format!("{from}-{}", until.min(1 << 40))), ("DISK_ERROR", number.clone())];
        let output = place.train(PARTS[2], &settings);
        let error = String::from_utf8(output.stderr).unwrap();
        match output.status.code() {
            // Only what is left over may stay then.
            Some(0) => {
                went_on += 1;
                assert_eq!(place.step(), Some(11), "{what}");
            }
            Some(1) => {
                assert_eq!(error.lines().count(), 1, "{what}: {error}");
                assert!(error.contains(&format!("os error {number}")), "{what}: {error}");
                let step = place.step().unwrap();
                let last = format!("step {step}");
                assert!(error.contains(&last) || step == 7, "{what}: {error}, expected {last}");
            }
            other => panic!("{what}: {other:?}: {error}"),
        }
        assert!(place.step() >= Some(7), "{what}");
        place.finish(PARTS[2]);
        // Checkpoints on the way that could not be written are not made up for.
        assert_same(&place, &expected, |name| !name.starts_with("step-"), &what);
    }
    println!("{went_on} runs came to their end");
}
