//! Self-adjusting numbers are described alike everywhere: page and counters' help follow the table of knobs.

use lossfeed::stats::Counters;
use lossfeed::tune::Knob;

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../pybind/docs/tuning.md");

/// The page's table.
fn table() -> String {
    let mut table =
        "| number | goes | you | in `loader.stats()` | decision |\n| --- | --- | --- | --- | --- |\n".to_owned();
    for knob in Knob::ALL {
        let about = knob.about();
        let counters = [about.gauge, about.changes, about.reason].into_iter().filter(|name| !name.is_empty());
        let counters: Vec<String> = counters.map(|name| format!("`{name}`")).collect();
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../engine/decisions");
        let number = format!("{:04}-", about.decision);
        let files = std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().file_name().into_string().unwrap());
        let file = files.into_iter().find(|file| file.starts_with(&number)).unwrap();
        table += &format!(
            "| `{}`: {} | {} | {} | {} | [{}](../../engine/decisions/{file}) |\n",
            about.name,
            about.sets,
            about.range,
            about.given,
            counters.join(", "),
            about.decision
        );
    }
    table
}

#[test]
fn the_page_for_users_has_the_table_of_knobs() {
    let page = std::fs::read_to_string(PAGE).unwrap();
    let table = table();
    assert!(page.contains(&table), "pybind/docs/tuning.md must have this table:\n\n{table}");
    for knob in Knob::ALL {
        for (number, why) in knob.about().reasons.iter().enumerate() {
            let said = format!("{} {why}", number + 1);
            assert!(page.contains(&said), "pybind/docs/tuning.md: {} does not say {said:?}", knob.about().name);
        }
    }
}

#[test]
fn every_knob_has_its_counters_and_the_codes_of_its_reasons() {
    for knob in Knob::ALL {
        let about = knob.about();
        for name in [about.gauge, about.changes, about.reason].into_iter().filter(|name| !name.is_empty()) {
            let known = Counters::DESCRIPTORS.iter().find(|known| known.name == name);
            let known = known.unwrap_or_else(|| panic!("{}: there is no counter {name}", about.name));
            assert!(name != about.reason || known.codes().len() == about.reasons.len(), "{name}");
        }
    }
}
