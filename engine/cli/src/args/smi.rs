//! The options of `lossfeed smi` and `lossfeed exporter`.

use clap::{Args, Subcommand};

use crate::smi::fields;
use crate::term::Color;

/// `lossfeed smi`.
#[derive(Debug, Clone, Args)]
pub struct SmiArgs {
    /// Another view than the table.
    #[command(subcommand)]
    pub mode: Option<SmiMode>,
    /// List the engines, one a line
    #[arg(short = 'L', long, group = "form", help_heading = "What")]
    pub list: bool,
    /// Print every field of every engine, one a line
    #[arg(short, long, group = "form", help_heading = "What")]
    pub query: bool,
    /// Print these fields as CSV, one engine a line: pid,job,stall_fraction
    #[arg(long, value_name = "FIELDS", value_delimiter = ',', value_parser = field)]
    #[arg(group = "form", help_heading = "What")]
    pub query_engine: Option<Vec<String>>,
    /// Explain the fields of --query-engine
    #[arg(long, group = "form", help_heading = "What")]
    pub help_query_engine: bool,
    /// Show again every SEC seconds: a full screen on a terminal, repeated output elsewhere
    #[arg(short = 'l', long, value_name = "SEC", num_args = 0..=1, default_missing_value = "1")]
    #[arg(value_parser = interval, help_heading = "What")]
    pub watch: Option<f64>,
    /// Only the engines of this job name or pid; exit code 6 if there is none
    #[arg(long, value_name = "NAME|PID", global = true, help_heading = "What")]
    pub job: Option<String>,
    /// Show made-up engines and GPUs; on a terminal as with --watch
    #[arg(long, global = true, help_heading = "What")]
    pub demo: bool,
    /// Fail without a readable GPU: exit code 9 no driver, 12 no NVML, 15 GPU lost, 6 no GPU
    #[arg(long, help_heading = "What")]
    pub require_gpu: bool,
    /// One JSON document, in base units, null for unknown; with --watch one a line
    #[arg(long, group = "form", help_heading = "Output")]
    pub json: bool,
    /// Form of --query-engine: csv[,noheader][,nounits]
    #[arg(long, value_name = "FORM", value_parser = csv_form, default_value = "csv")]
    #[arg(requires = "query_engine", help_heading = "Output")]
    pub format: CsvForm,
    /// When to use colour; NO_COLOR, CLICOLOR_FORCE and FORCE_COLOR are honoured
    #[arg(long, value_enum, value_name = "WHEN", default_value = "auto", help_heading = "Output")]
    pub color: Color,
    /// Draw with plain ASCII; the default if the locale has no UTF-8
    #[arg(long, help_heading = "Output")]
    pub ascii: bool,
}

/// The views of `lossfeed smi` that are commands.
#[derive(Debug, Clone, Subcommand)]
pub enum SmiMode {
    /// Print a line a second for each engine, with what happened since the line before
    Dmon {
        /// Seconds between lines
        #[arg(short, long, value_name = "SEC", default_value = "1", value_parser = interval)]
        delay: f64,
        /// Stop after N rounds
        #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
        count: Option<u64>,
    },
}

/// The parts of `--format`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CsvForm {
    /// Print the names of the fields first.
    pub header: bool,
    /// Print units.
    pub units: bool,
}

/// `lossfeed exporter`.
#[cfg(feature = "engine")]
#[derive(Debug, Clone, Args)]
pub struct ExporterArgs {
    /// Address to listen on. Another than a loopback address shows names of jobs and paths of data to the network
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:9841")]
    pub listen: std::net::SocketAddr,
}

/// Seconds between screens: at least 0.1, as gpustat has it.
fn interval(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(x) if (0.1..=86_400.0).contains(&x) => Ok(x),
        _ => Err("must be between 0.1 and 86400 seconds".to_owned()),
    }
}

fn field(name: &str) -> Result<String, String> {
    let name = name.trim();
    match fields::all().any(|field| field.name == name) {
        true => Ok(name.to_owned()),
        false => Err(format!("no field is called {name:?}: lossfeed smi --help-query-engine lists them")),
    }
}

fn csv_form(text: &str) -> Result<CsvForm, String> {
    let words: Vec<&str> = text.split(',').map(str::trim).collect();
    match words.split_first() {
        Some((&"csv", rest)) if rest.iter().all(|word| ["noheader", "nounits"].contains(word)) => {
            Ok(CsvForm { header: !rest.contains(&"noheader"), units: !rest.contains(&"nounits") })
        }
        _ => Err("must be csv, csv,noheader, csv,nounits or csv,noheader,nounits".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Cli, Command};
    use clap::Parser;

    fn smi(typed: &str) -> Result<super::SmiArgs, clap::Error> {
        let words = ["lossfeed", "smi"].into_iter().chain(typed.split_whitespace());
        match Cli::try_parse_from(words)?.command {
            Command::Smi(args) => Ok(args),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn nvidia_smis_spellings_are_understood() {
        assert!(smi("-L").unwrap().list && smi("-q").unwrap().query);
        assert_eq!((smi("-l").unwrap().watch, smi("-l 5").unwrap().watch), (Some(1.0), Some(5.0)));
        let asked = smi("--query-engine=pid,job --format=csv,noheader,nounits").unwrap();
        assert_eq!(asked.query_engine.unwrap(), ["pid", "job"]);
        assert_eq!(asked.format, super::CsvForm { header: false, units: false });
        let dmon = smi("dmon -d 2 -c 3 --job resnet").unwrap();
        assert!(matches!(dmon.mode, Some(super::SmiMode::Dmon { delay: 2.0, count: Some(3) })));
        assert_eq!(dmon.job.as_deref(), Some("resnet"));
    }

    #[test]
    fn what_contradicts_itself_or_is_unknown_is_refused_with_a_remedy() {
        for (typed, says) in [
            ("--query-engine=stal", "--help-query-engine"),
            ("--query-engine=pid --format=xml", "csv,noheader,nounits"),
            ("--format=csv", "--query-engine"),
            ("-L -q", "cannot be used with"),
            ("--json -L", "cannot be used with"),
            ("dmon -c 0", "1.."),
            ("-l 0", "0.1 and 86400"),
        ] {
            let refused = smi(typed).unwrap_err();
            assert!(refused.to_string().contains(says) && refused.exit_code() == 2, "{typed}: {refused}");
        }
    }
}
