//! `lossfeed forms`: in which form to cache samples, beside what one form for all would give.

use std::fs::File;
use std::io::{self, BufReader, Read, Write};

use lossfeed_control::jobs::{Forms, Means, Samples, choose_forms};
use lossfeed_control::{Error, Result, printable};
use serde::{Deserialize, Serialize};

use crate::args::FormsArgs;
use crate::term;

/// A larger file is no list of samples.
const BYTES_MAX: u64 = 64 << 20;

/// What the file says.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Asked {
    cache_bytes: f64,
    bandwidth_bytes_per_s: f64,
    cores: f64,
    samples: Vec<Samples>,
}

/// The JSON document: `{"epoch_s", "cpu_s", "link_s", "chosen": [{"samples", "form", "share", "cache_bytes"}…],
/// "alone": [{"form", "epoch_s"}…]}`. `alone`: the same cache with one form for everybody, and with none.
#[derive(Debug, Serialize)]
struct Report {
    epoch_s: f64,
    cpu_s: f64,
    link_s: f64,
    chosen: Vec<ChosenRow>,
    alone: Vec<AloneRow>,
}

#[derive(Debug, Serialize)]
struct ChosenRow {
    samples: String,
    form: String,
    share: f64,
    cache_bytes: f64,
}

#[derive(Debug, Serialize)]
struct AloneRow {
    form: String,
    epoch_s: f64,
}

/// Runs the command and returns its exit code.
pub(crate) fn run(args: &FormsArgs) -> i32 {
    match choose(args) {
        Ok(report) => term::exit_code(print(&report, args.json, &mut io::stdout().lock())),
        Err(e) => term::failed(&e),
    }
}

fn choose(args: &FormsArgs) -> Result<Report> {
    let path = args.samples.display();
    let told = |e: Error| Error::unreadable(format!("samples {path}")).because(e);
    let file = File::open(&args.samples).map_err(|e| told(Error::unreadable("cannot open it").because(e)))?;
    let mut text = Vec::new();
    let limited = BufReader::new(file).take(BYTES_MAX + 1).read_to_end(&mut text);
    limited.map_err(|e| told(Error::unreadable("cannot read it").because(e)))?;
    if text.len() as u64 > BYTES_MAX {
        return Err(told(Error::settings(format!("it is longer than {BYTES_MAX} bytes, so it is no list of samples"))));
    }
    let asked: Asked = serde_json::from_slice(&text)
        .map_err(|e| Error::settings(format!("samples {path}: {e}; `lossfeed forms --help` shows one")))?;
    let Asked { cache_bytes, bandwidth_bytes_per_s, cores, samples } = asked;
    let means = Means { cache_bytes, bandwidth_bytes_per_s, cores };
    let found = choose_forms(means, &samples).map_err(|e| Error::settings(format!("samples {path}")).because(e))?;
    Ok(Report {
        epoch_s: found.epoch_s(),
        cpu_s: found.cpu_s,
        link_s: found.link_s,
        chosen: chosen(&samples, &found),
        alone: alone(means, &samples)?,
    })
}

fn chosen(samples: &[Samples], found: &Forms) -> Vec<ChosenRow> {
    let rows = samples.iter().zip(&found.shares).flat_map(|(of, shares)| {
        of.forms.iter().zip(shares).map(|(form, &share)| ChosenRow {
            samples: of.name.clone(),
            form: form.name.clone(),
            share,
            cache_bytes: share * of.count * form.bytes,
        })
    });
    rows.collect()
}

/// One form for all that have it, and nothing cached.
fn alone(means: Means, samples: &[Samples]) -> Result<Vec<AloneRow>> {
    let mut names: Vec<&str> = Vec::new();
    for form in samples.iter().flat_map(|of| &of.forms) {
        if !names.contains(&&form.name[..]) {
            names.push(&form.name);
        }
    }
    let only = |name: Option<&str>| {
        let mut samples = samples.to_vec();
        samples.iter_mut().for_each(|of| of.forms.retain(|form| name == Some(&form.name[..])));
        let epoch_s = choose_forms(means, &samples)?.epoch_s();
        Ok(AloneRow { form: name.unwrap_or("nothing").to_owned(), epoch_s })
    };
    std::iter::once(None).chain(names.into_iter().map(Some)).map(only).collect()
}

fn print(report: &Report, json: bool, out: &mut impl Write) -> io::Result<i32> {
    if json {
        term::document(report, out)?;
        out.flush()?;
        return Ok(0);
    }
    writeln!(out, "{:<24} {:<16} {:>8} {:>10}", "samples", "form", "share%", "cache GB")?;
    for ChosenRow { samples, form, share, cache_bytes } in &report.chosen {
        let (samples, form) = (printable(samples), printable(form));
        writeln!(out, "{samples:<24} {form:<16} {:>8.1} {:>10.2}", 100.0 * share, cache_bytes / 1e9)?;
    }
    let Report { epoch_s, cpu_s, link_s, .. } = report;
    writeln!(out, "\nan epoch takes {epoch_s:.1} s at least: processors {cpu_s:.1} s, link {link_s:.1} s")?;
    for AloneRow { form, epoch_s } in &report.alone {
        writeln!(out, "with {} alone {epoch_s:.1} s", printable(form))?;
    }
    out.flush()?;
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ten samples, read once. Decoding takes a second; a sample has 10 bytes encoded, 40 decoded. One byte a second.
    const SAMPLES: &str = r#"{"cache_bytes": 100, "bandwidth_bytes_per_s": 10, "cores": 1,
        "samples": [{"name": "pictures", "count": 10, "reads": 1, "cpu_s": 1, "fetch_bytes": 10, "forms": [
            {"name": "encoded", "bytes": 10, "cpu_s_saved": 0, "fetch_bytes_saved": 10, "reuse": 1},
            {"name": "decoded", "bytes": 40, "cpu_s_saved": 1, "fetch_bytes_saved": 10, "reuse": 1}]}]}"#;

    fn args(text: &str) -> (tempfile::NamedTempFile, FormsArgs) {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        let samples = file.path().to_owned();
        (file, FormsArgs { samples, json: false })
    }

    #[test]
    fn what_is_short_decides_and_one_form_alone_is_never_better() {
        // Nothing cached: 10 s of processors, 10 s of link. Decoded alone: 2.5 samples, 7.5 s of both.
        let (_file, found) = args(SAMPLES);
        let report = choose(&found).unwrap();
        let alone: Vec<_> = report.alone.iter().map(|row| (&row.form[..], row.epoch_s)).collect();
        assert_eq!(alone, [("nothing", 10.0), ("encoded", 10.0), ("decoded", 7.5)]);
        assert!((report.epoch_s - 7.5).abs() < 1e-6, "{report:?}");
        // With ten processors only the link counts, and encoded samples take its work away.
        let (_file, found) = args(&SAMPLES.replace("\"cores\": 1", "\"cores\": 10"));
        let report = choose(&found).unwrap();
        assert!(report.epoch_s <= report.alone.iter().map(|row| row.epoch_s).fold(f64::MAX, f64::min) + 1e-9);
        let encoded = report.chosen.iter().find(|row| row.form == "encoded").unwrap();
        assert!(encoded.share > 0.5 && report.chosen.iter().map(|row| row.cache_bytes).sum::<f64>() <= 100.0 + 1e-6);
    }

    #[test]
    fn the_table_and_the_document_have_every_form() {
        let (_file, found) = args(SAMPLES);
        for json in [false, true] {
            let mut out = Vec::new();
            print(&choose(&found).unwrap(), json, &mut out).unwrap();
            let text = String::from_utf8(out).unwrap();
            assert!(["pictures", "encoded", "decoded", "nothing"].iter().all(|name| text.contains(name)), "{text}");
        }
    }

    #[test]
    fn what_is_no_list_of_samples_is_refused_with_the_place() {
        for (from, to, says) in [
            ("100", "\"100\"", "line 1"),
            ("\"cores\"", "\"cpus\"", "unknown field `cpus`"),
            ("\"cores\": 1", "\"cores\": 0", "0 cores"),
            ("\"cpu_s_saved\": 1", "\"cpu_s_saved\": 2", "form decoded of dataset pictures has 2 CPU seconds saved"),
        ] {
            let (_file, found) = args(&SAMPLES.replacen(from, to, 1));
            let error = choose(&found).unwrap_err();
            let mut all = error.to_string();
            let mut cause = std::error::Error::source(&error);
            while let Some(next) = cause {
                all += &next.to_string();
                cause = next.source();
            }
            assert!(all.contains(says), "{all}");
        }
    }
}
