//! The shipped PTX on the fibers: translated into C++ statement by statement, and held to the checks of the CUDA text.
//!
//! Here every entry runs on small shapes. All of `fiber.rs` runs on it with
//!
//! ```text
//! LOSSFEED_PTX=shipped cargo nextest run -p lossfeed-tests --test kernels fiber::
//! ```
//!
//! `LOSSFEED_PTX` may also be a file of PTX. `LOSSFEED_PTX_ERROR` puts the special functions at the ends of their
//! documented error: `above`, `below`, or `scattered` over all of it.

mod emit;
mod faults;
mod libraries;
mod statements;
mod table;
mod text;

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use lossfeed_kernels::{Dtype, ptx};
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;

pub(crate) use self::libraries::Libraries;
use crate::cases::Flavour;
use crate::checks::{self, case_of, check};
use crate::fiber::Fibers;
use crate::program::Machine;
use crate::shapes::REDUCED;
use crate::{gather_checks, gradient_checks, image_checks, mail_checks, mean_checks, mixing_checks, retouch_checks};
use faults::FAULTS;
use text::{Part, parse};

/// What the environment asks to run in place of the CUDA text: PTX, and the error of its special functions.
pub(crate) fn asked() -> Option<(Option<Libraries>, String)> {
    let asked = std::env::var("LOSSFEED_PTX").ok().filter(|name| !name.is_empty())?;
    let error = std::env::var("LOSSFEED_PTX_ERROR").unwrap_or_else(|_| "none".to_owned());
    let libraries = match &*asked {
        "shipped" => Libraries::new(ptx::module(), &[]),
        path => Libraries::new(std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{path}: {e}")), &[]),
    };
    Some((libraries, error))
}

/// Runs a check on the shipped PTX with that error of the special functions.
fn on_ptx(error: &str, check: impl Fn(&mut dyn Machine)) {
    let Some(libraries) = Libraries::new(ptx::module(), &[]) else { return };
    let Some(mut machine) = Fibers::translated(Arc::new(libraries), error, 0) else { return };
    check(&mut machine);
}

const ERRORS: [&str; 4] = ["none", "above", "below", "scattered"];

#[test]
fn the_ptx_scores_as_the_definition_whatever_its_special_functions_are_off_by() {
    for error in ERRORS {
        on_ptx(error, |machine| checks::every_shape(machine, &REDUCED, 1));
    }
}

#[test]
fn the_ptx_keeps_the_digits_of_losses_whatever_its_special_functions_are_off_by() {
    for error in ERRORS {
        on_ptx(error, checks::edges_of_the_exponent);
    }
}

#[test]
fn the_ptx_smooths_weights_and_means_as_the_definition() {
    on_ptx("none", |machine| {
        checks::terms(machine, &REDUCED);
        checks::losses_alone(machine, &REDUCED);
        mean_checks::means(machine, &REDUCED);
        mean_checks::backward_of_a_mean(machine, &REDUCED);
    });
}

#[test]
fn the_ptx_writes_the_gradient_of_the_definition_whatever_its_special_functions_are_off_by() {
    for error in ERRORS {
        on_ptx(error, |machine| {
            gradient_checks::backward(machine, &REDUCED);
            gradient_checks::probabilities(machine, &REDUCED);
        });
    }
}

#[test]
fn the_ptx_ranks_and_mails_as_the_definition() {
    on_ptx("none", |machine| {
        checks::ranks(machine, &[1, 513, 2049, 5000, 66_000]);
        checks::bad_targets(machine);
        mail_checks::sequences(machine);
        mail_checks::mail(machine, &[9, 700]);
        mail_checks::a_closed_mailbox(machine);
        mail_checks::bad_rows(machine);
    });
}

/// Batches of every type of image, made, erased and mixed: always the same ones.
fn mixed_batches(machine: &mut dyn Machine) {
    let mut runner = TestRunner::deterministic();
    for _ in 0..24 {
        let case = mixing_checks::any_mixing().new_tree(&mut runner).unwrap().current();
        mixing_checks::check(machine, &case).unwrap();
    }
}

#[test]
fn the_ptx_makes_images_to_the_byte() {
    on_ptx("none", |machine| {
        image_checks::trained_on(machine, 2);
        mixed_batches(machine);
        retouch_checks::trained_on(machine, 3);
        retouch_checks::every_operation(machine, 2);
        gather_checks::every_width(machine);
    });
}

/// The checks of kernels that planted faults meet first.
const QUICK: &[fn(&mut dyn Machine)] = &[
    |machine| {
        for (dtype, classes, flavour) in [
            (Dtype::F32, 10, Flavour::Nasty),
            (Dtype::F32, 33, Flavour::Far(1e6)),
            (Dtype::F16, 10, Flavour::Confident),
            (Dtype::F16, 33, Flavour::Plain),
            (Dtype::F64, 33, Flavour::Far(1e6)),
            (Dtype::F64, 10, Flavour::Nasty),
            (Dtype::F32, 1001, Flavour::Nasty),
        ] {
            check(machine, &case_of(dtype, (9, classes, 3, 1, 132), flavour, 11), 132).unwrap();
        }
    },
    |machine| checks::ranks(machine, &[1, 513, 2049]),
    |machine| mail_checks::mail(machine, &[9]),
    |machine| mail_checks::bad_rows(machine),
    |machine| checks::bad_targets(machine),
    |machine| image_checks::trained_on(machine, 2),
];

/// Those that take longer.
const SLOW: &[fn(&mut dyn Machine)] = &[
    |machine| gradient_checks::backward(machine, &REDUCED),
    |machine| retouch_checks::every_operation(machine, 2),
    checks::edges_of_the_exponent,
    mixed_batches,
];

/// A fault in all statements of an opcode at once is found by a check of the kernels, or of single statements where the
/// kernels give the same numbers with it.
#[test]
fn every_planted_fault_of_the_translation_is_found() {
    let Some(kernels) = Libraries::new(ptx::module(), FAULTS).map(Arc::new) else { return };
    let statements = statements::libraries(FAULTS).unwrap();
    let entries = kernels.module.entries.iter().chain(&statements.module.entries);
    let opcodes = entries.flat_map(|e| &e.statements).filter_map(|s| match &s.part {
        Part::Instruction { opcode, .. } => Some(opcode.as_str()),
        _ => None,
    });
    let opcodes: BTreeSet<&str> = opcodes.collect();
    let fails = |libraries: &Arc<Libraries>, number: usize, check: &dyn Fn(&mut Fibers)| {
        let mut machine = Fibers::translated(libraries.clone(), "none", number).unwrap();
        catch_unwind(AssertUnwindSafe(|| check(&mut machine))).is_err()
    };
    let found = |number: usize| {
        let by_any =
            |checks: &[fn(&mut dyn Machine)]| checks.iter().any(|check| fails(&kernels, number, &|m| check(m)));
        by_any(QUICK) || fails(&statements, number, &|m| statements::check(m, 0).unwrap()) || by_any(SLOW)
    };
    assert!(!found(0), "without a fault all checks pass");
    let planted = FAULTS.iter().enumerate().filter(|(_, f)| opcodes.iter().any(|o| f.applies(o, true)));
    let missed: Vec<_> = planted.filter(|(n, _)| !found(n + 1)).map(|(_, fault)| fault.opcode).collect();
    assert!(missed.is_empty(), "no check finds what is wrong with {missed:?}");
}

#[test]
fn every_statement_of_the_shipped_ptx_is_known() {
    let Some(libraries) = Libraries::new(ptx::module(), &[]) else { return };
    for entry in &libraries.module.entries {
        emit::translate(&libraries.module, entry, &[]).unwrap_or_else(|e| panic!("{}: {e}", entry.name));
    }
}

#[test]
fn ptx_that_is_not_known_is_an_error_with_its_line() {
    let entry = |statement: &str| {
        format!(
            ".version 8.0\n.target sm_75\n.address_size 64\n.visible .entry k(\n\t.param .align 8 .b8 p[8]\n)\n{{\n\
             .reg .b32 %r<3>;\n.reg .f32 %f<3>;\n.reg .b64 %rd<3>;\n\t{statement}\n\tret;\n}}\n"
        )
    };
    let translated = |statement: &str| {
        let module = parse(&entry(statement))?;
        emit::translate(&module, &module.entries[0], &[])
    };
    translated("add.s32 \t%r1, %r2, -1;").unwrap();
    for unknown in [
        "brkpt;",
        "add.f16 %r1, %r1, %r2;",
        "add.sat.s32 %r1, %r1, %r2;",
        "fma.rz.f32 %f1, %f1, %f1, %f1;",
        "ld.global.L2::128B.u32 %r1, [%rd1];",
        "ld.local.u32 %r1, [%rd1];",
        "bar.sync 1;",
        "atom.global.inc.u32 %r1, [%rd1], %r2;",
        "cvt.rn.satfinite.e4m3x2.f32 %r1, %f1, %f2;",
        "mov.u32 %r1, %clock;",
        "mov.u64 %rd1, elsewhere;",
        "add.s32 %r1, %r2, 1, 2;",
        ".local .b8 stack[8];",
        "mov.f32 %r9, 0f00000000;",
    ] {
        let error = translated(unknown).unwrap_err();
        assert!(error.starts_with("line 11: "), "{unknown}: {error}");
    }
    let error = parse(".version 8.0\n.func f()\n").err().unwrap();
    assert_eq!(error, "line 2: unknown PTX: .func f()");
}
