//! The main help: commands in groups, by what a user wants.

use clap::Subcommand;

use super::Command;
use crate::term;

const GROUPS: [(&str, &[&str]); 5] = [
    ("Watch a run", &["why", "check", "smi", "node", "exporter", "doctor"]),
    ("Prepare data", &["pack", "index"]),
    ("Compare samplers and caches", &["train", "replay"]),
    ("Plan a cluster", &["allocate", "forms"]),
    ("Set up a shell", &["completions", "man"]),
];
/// Columns of a command's name and the blanks around it.
const NAME: usize = 15;

/// clap's template of the main help.
pub(super) fn template() -> String {
    let commands = Command::augment_subcommands(clap::Command::new("lossfeed"));
    let mut text = "{about-with-newline}\n{usage-heading} {usage}\n".to_owned();
    let width = usize::from(term::width().min(110));
    for (group, names) in GROUPS {
        let found = names.iter().filter_map(|name| commands.find_subcommand(name)).map(|command| {
            let about = command.get_about().map(ToString::to_string).unwrap_or_default();
            let lines = term::wrap(&about, width - NAME).join(&format!("\n{:NAME$}", ""));
            format!("  {:<12} {lines}\n", command.get_name())
        });
        let found: String = found.collect();
        if !found.is_empty() {
            text += &format!("\n{group}:\n{found}");
        }
    }
    text + "\nOptions:\n{options}\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_is_in_one_group() {
        let commands = Command::augment_subcommands(clap::Command::new("lossfeed"));
        for command in commands.get_subcommands() {
            let name = command.get_name();
            let listed = GROUPS.iter().flat_map(|(_, names)| *names).filter(|&&listed| listed == name).count();
            assert_eq!(listed, 1, "{name}");
            assert!(template().contains(&format!("\n  {name:<12} ")), "{name}");
        }
    }
}
