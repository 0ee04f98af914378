//! The samplers and their options, as the engine has them.

use lossfeed::sampler::{NAMES, SamplerSettings};
use pyo3::prelude::*;
use serde_json::{Map, Value};

/// Every sampler that can be asked for by name, with the names of its options.
#[pyfunction]
pub(crate) fn sampler_options() -> Vec<(&'static str, Vec<String>)> {
    let options = |name| match SamplerSettings::from_name(name).map(serde_json::to_value) {
        Ok(Ok(Value::Object(all))) => all.into_iter().map(|(option, _)| option).filter(|o| o != "name").collect(),
        _ => Vec::new(),
    };
    NAMES.into_iter().map(|name| (name, options(name))).collect()
}

/// The first fault in a sampler's options (JSON): the option with a value of the wrong kind, and what it takes; or no
/// name, and the refusal of a value out of range. None if nothing is. The ranges of `auto` depend on the run.
#[pyfunction]
pub(crate) fn sampler_problem(settings: &str) -> Option<(String, String)> {
    let all: Map<String, Value> = serde_json::from_str(settings).ok()?;
    let name = all.get("name")?;
    let of_a_wrong_kind = all.iter().find_map(|(option, value)| {
        let alone = Map::from_iter([("name".to_owned(), name.clone()), (option.clone(), value.clone())]);
        let problem = serde_json::from_value::<SamplerSettings>(alone.into()).err()?;
        Some((option.clone(), problem.to_string()))
    });
    of_a_wrong_kind.or_else(|| {
        let sampler: SamplerSettings = serde_json::from_value(all.clone().into()).ok()?;
        let problem = (sampler.name() != "auto").then(|| sampler.build().err())??;
        Some((String::new(), problem.to_string()))
    })
}
