//! `rationd completions` and `rationd man`: what shells complete, and manual pages, made from the command line itself.

use std::fs;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;
use clap::CommandFactory;
use clap_complete::Shell;
use clap_mangen::Man;

use super::args::Cli;
use super::exit::Code;
use super::output;

/// Prints the completions of a shell.
pub(crate) fn completions(shell: Shell) -> anyhow::Result<ExitCode> {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "rationd", &mut text);
    output::data(String::from_utf8(text)?.trim_end())?;
    Ok(Code::Ok.into())
}

/// Writes a manual page for the program and one for each of its commands, in section 1, or prints the program's.
pub(crate) fn man(directory: Option<&Path>) -> anyhow::Result<ExitCode> {
    let pages = pages()?;
    match directory {
        None => output::data(pages[0].1.trim_end())?,
        Some(directory) => {
            fs::create_dir_all(directory).with_context(|| format!("cannot make {}", directory.display()))?;
            for (name, text) in &pages {
                let path = directory.join(name);
                fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
            }
            output::data(&format!("{} pages in {}", pages.len(), directory.display()))?;
        }
    }
    Ok(Code::Ok.into())
}

/// File names and texts, the program's own first.
fn pages() -> anyhow::Result<Vec<(String, String)>> {
    fn add(command: &clap::Command, pages: &mut Vec<(String, String)>) -> anyhow::Result<()> {
        let man = Man::new(command.clone());
        let (name, mut text) = (man.get_filename(), Vec::new());
        man.render(&mut text)?;
        pages.push((name, String::from_utf8(text)?));
        command.get_subcommands().filter(|command| !command.is_hide_set()).try_for_each(|command| add(command, pages))
    }
    let mut command = Cli::command().disable_help_subcommand(true);
    // Names of commands are put together, and global flags handed down, only here.
    command.build();
    let mut pages = Vec::new();
    add(&command, &mut pages)?;
    Ok(pages)
}
