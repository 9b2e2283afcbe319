//! The list of cases, which `taipan doctor` runs too.

use std::collections::BTreeSet;

use taipan::check::{cases, check};

#[test]
fn every_case() {
    cases::list().iter().for_each(check);
}

/// A case is drawn from its name, and the first of an op stands for it.
#[test]
fn names_differ_and_ops_are_in_one_place() {
    let list = cases::list();
    let names: BTreeSet<&str> = list.iter().map(|case| case.name()).collect();
    assert_eq!(names.len(), list.len());
    let mut ops: Vec<&str> = list.iter().map(|case| case.op()).collect();
    ops.dedup();
    assert_eq!(ops.len(), ops.iter().collect::<BTreeSet<_>>().len(), "{ops:?}");
}
