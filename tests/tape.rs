//! The tape and the gradient check themselves: sums of gradients, refusals, and wrong gradients that must be found.

mod common;

use common::{f32s, f64s, ids, random};
use handgrad::gradcheck::gradcheck;
use handgrad::ops;
use handgrad::{Tape, Var};

#[test]
fn a_value_used_twice_adds_its_gradients() {
    let gradient = |f: &dyn Fn(&mut Tape, &Var) -> Var| {
        let mut tape = Tape::new();
        let x = tape.leaf("x", &f64s(&[3.0], &[1]));
        let y = f(&mut tape, &x);
        tape.backward(&y).unwrap().get("x").unwrap().item().unwrap()
    };
    let x_squared_plus_x = gradient(&|t, x| {
        let square = ops::mul(t, x, x).unwrap();
        ops::add(t, &square, x).unwrap()
    });
    assert_eq!(x_squared_plus_x, 7.0);
    let through_a = gradient(&|t, x| {
        let a = ops::scale(t, x, 2.0).unwrap();
        let square = ops::mul(t, &a, &a).unwrap();
        ops::add(t, &square, &a).unwrap()
    });
    assert_eq!(through_a, 26.0);
}

#[test]
fn repeated_rows_and_repeated_biases_add_up() {
    let mut tape = Tape::new();
    let table = tape.leaf("table", &f32s(&[0.0; 3], &[3, 1]));
    let y = ops::embedding(&mut tape, &table, &ids(&[1, 1, 0])).unwrap();
    let gradients = tape.backward_from(&[(&y, f32s(&[1.0, 2.0, 4.0], &[3, 1]))]).unwrap();
    assert_eq!(gradients.get("table").unwrap().to_f64_vec().unwrap(), [4.0, 3.0, 0.0]);

    let mut tape = Tape::new();
    let x = Var::constant(f32s(&[0.0; 6], &[3, 2]));
    let bias = tape.leaf("bias", &f32s(&[0.0; 2], &[2]));
    let y = ops::add(&mut tape, &x, &bias).unwrap();
    let gradients = tape.backward_from(&[(&y, f32s(&[1.0; 6], &[3, 2]))]).unwrap();
    assert_eq!(gradients.get("bias").unwrap().to_f64_vec().unwrap(), [3.0, 3.0]);
}

#[test]
fn what_the_loss_does_not_depend_on_has_no_gradient() {
    let mut tape = Tape::new();
    let (x, unused) = (tape.leaf("x", &f64s(&[2.0], &[1])), tape.leaf("unused", &f64s(&[2.0], &[1])));
    ops::scale(&mut tape, &unused, 3.0).unwrap();
    let y = ops::scale(&mut tape, &x, 3.0).unwrap();
    let gradients = tape.backward(&y).unwrap();
    assert_eq!(gradients.get("x").unwrap().item().unwrap(), 3.0);
    assert!(gradients.get("unused").is_none());
}

#[test]
fn backward_refuses_what_is_no_loss() {
    let mut tape = Tape::new();
    let x = tape.leaf("x", &f64s(&[2.0, 3.0], &[2]));
    assert!(tape.backward(&x).err().unwrap().to_string().contains("[2]"));
    let constant = Var::constant(f64s(&[1.0], &[1]));
    assert!(Tape::new().backward(&constant).err().unwrap().to_string().contains("no leaf"));
    let mut tape = Tape::new();
    let x = tape.leaf("x", &f64s(&[2.0], &[1]));
    assert!(tape.backward_from(&[(&x, f64s(&[1.0, 1.0], &[2]))]).is_err());
}

#[test]
fn a_leaf_is_known_by_its_name() {
    let mut tape = Tape::new();
    let value = f64s(&[2.0], &[1]);
    let (a, b) = (tape.leaf("tied", &value), tape.leaf("tied", &value));
    tape.leaf("another", &value);
    assert_eq!(tape.leaf_names(), ["another", "tied"]);
    let y = ops::mul(&mut tape, &a, &b).unwrap();
    let mut gradients = tape.backward(&y).unwrap();
    assert_eq!(gradients.get("tied").unwrap().item().unwrap(), 4.0, "both uses add up");
    *gradients.get_mut("tied").unwrap() = f64s(&[7.0], &[1]);
    assert_eq!(gradients.get("tied").unwrap().item().unwrap(), 7.0);
}

#[test]
#[should_panic(expected = "two leaves are named x")]
fn two_leaves_of_one_name_and_two_shapes_are_a_mistake() {
    let mut tape = Tape::new();
    tape.leaf("x", &f64s(&[2.0], &[1]));
    tape.leaf("x", &f64s(&[2.0, 3.0], &[2]));
}

#[test]
fn values_of_another_tape_are_refused() {
    let mut other = Tape::new();
    let mut y = other.leaf("x", &f64s(&[2.0], &[1]));
    for _ in 0..5 {
        y = ops::scale(&mut other, &y, 2.0).unwrap();
    }
    let error = Tape::new().backward(&y).err().unwrap().to_string();
    assert!(error.contains("another tape"), "{error}");
}

#[test]
fn an_inference_tape_and_constants_record_nothing() {
    let mut tape = Tape::inference();
    let x = tape.leaf("x", &f64s(&[2.0], &[1]));
    assert!(!ops::scale(&mut tape, &x, 3.0).unwrap().needs_gradient());
    let mut tape = Tape::new();
    let constant = Var::constant(f64s(&[2.0], &[1]));
    assert!(!ops::scale(&mut tape, &constant, 3.0).unwrap().needs_gradient());
    assert!(tape.leaf_names().is_empty());
}

#[test]
fn gradcheck_finds_a_wrong_gradient() {
    // swiglu's value with silu's gradient in the gate only: the up branch is a constant of the same value
    let wrong = |t: &mut Tape, x: &[Var]| {
        let up = Var::constant(x[1].value().clone());
        Ok(vec![ops::swiglu(t, &x[0], &up)?])
    };
    let report = gradcheck(&[random(&[3], 1), random(&[3], 2)], 0, wrong).unwrap();
    assert!(!report.passes(), "{report:?}");
    // the same among thousands of inputs, where only directions are checked
    let report = gradcheck(&[random(&[50, 40], 1), random(&[50, 40], 2)], 0, wrong).unwrap();
    assert!(!report.passes(), "{report:?}");
    let nan = |t: &mut Tape, x: &[Var]| Ok(vec![ops::scale(t, &x[0], f64::NAN)?]);
    assert!(!gradcheck(&[random(&[3], 1)], 0, nan).unwrap().passes(), "NaN must not pass");
}
