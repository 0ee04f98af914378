//! What other programs show of the options: completions for shells, manual pages.

use std::io::{self, Write};
use std::path::Path;

use clap::CommandFactory;
use clap_complete::Shell;

use crate::args::Cli;
use crate::term;

/// Prints the completions for one shell.
pub(crate) fn completions(shell: Shell) -> i32 {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "lossfeed", &mut script);
    term::exit_code(io::stdout().write_all(&script).map(|()| 0))
}

/// Writes a page for the program and one for each command.
pub(crate) fn pages(dir: &Path) -> i32 {
    match std::fs::create_dir_all(dir).and_then(|()| clap_mangen::generate_to(Cli::command(), dir)) {
        Ok(()) => 0,
        Err(e) => {
            term::complain(&format!("{}: the pages cannot be written: {e}", dir.display()));
            1
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_has_a_page_and_is_completed() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(pages(&dir.path().join("new")), 0);
        let page = |name: &str| std::fs::read_to_string(dir.path().join("new").join(name)).unwrap();
        for command in Cli::command().get_subcommands() {
            let name = command.get_name();
            let page = page(&format!("lossfeed-{name}.1"));
            for argument in command.get_arguments().filter_map(clap::Arg::get_long) {
                assert!(page.replace('\\', "").contains(&format!("--{argument}")), "{name} --{argument}");
            }
        }
        assert!(page("lossfeed.1").contains("SUBCOMMANDS"));
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "lossfeed", &mut script);
            let script = String::from_utf8(script).unwrap();
            assert!(["replay", "capacity-fraction", "smi"].iter().all(|word| script.contains(word)), "{shell}");
        }
    }

    #[test]
    fn a_folder_that_cannot_be_made_is_a_failure_with_a_line() {
        let file = tempfile::NamedTempFile::new().unwrap();
        assert_eq!(pages(&file.path().join("below")), 1);
    }
}
