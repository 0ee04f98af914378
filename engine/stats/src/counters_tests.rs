//! Names, kinds and descriptions of the counters.

use super::*;

#[test]
fn names_are_distinct_and_each_finds_its_own_number() {
    let counters = Counters::default();
    Counters::add(&counters.hits_total, 3);
    Counters::add(&counters.hits_total, 4);
    Counters::set(&counters.score_age_steps, 5);
    let snapshot = counters.snapshot();
    assert_eq!((snapshot.get("hits_total"), snapshot.get("score_age_steps")), (Some(7), Some(5)));
    assert_eq!(snapshot.get("misses_total"), Some(0));
    assert_eq!(snapshot.get("no_such_number"), None);
    assert_eq!(counters.named("hits_total").map(Counters::get), Some(7));
    assert!(counters.named("no_such_number").is_none());
    assert_eq!(snapshot.values.iter().sum::<u64>(), 12);
    let distinct: std::collections::HashSet<_> = Counters::NAMES.iter().collect();
    assert_eq!(distinct.len(), Counters::NAMES.len());
    assert!(HISTORY.iter().all(|name| distinct.contains(name)));
}

#[test]
fn every_number_is_described_and_its_kind_is_that_of_its_name() {
    assert_eq!(Counters::DESCRIPTORS.iter().map(|d| d.name).collect::<Vec<_>>(), Counters::NAMES);
    for number in Counters::DESCRIPTORS {
        let Descriptor { name, kind, unit, help } = number;
        assert!(help.len() > 10 && help.ends_with('.') && !help.contains("  "), "{name}: {help:?}");
        assert_eq!(*kind == Kind::Counter, name.ends_with("_total"), "{name}");
        assert_eq!(*unit == Unit::Microseconds, name.contains("_us_"), "{name}");
        assert_eq!(*unit == Unit::Bytes, name.contains("bytes"), "{name}");
        assert!(!unit.name().is_empty());
        assert_eq!(*unit == Unit::Code, !number.codes().is_empty(), "{name}: its values need meanings");
    }
}

#[test]
fn a_renamed_number_is_found_by_its_old_name() {
    let counters = Counters::default();
    Counters::add(&counters.wait_decide_us_total, 9);
    for (old, new) in RENAMED {
        assert!(!Counters::NAMES.contains(&old) && Counters::NAMES.contains(&new), "{old}");
        assert_eq!(counters.snapshot().get(old), counters.snapshot().get(new));
    }
    assert_eq!(counters.snapshot().get("wait_score_us_total"), Some(9));
}
