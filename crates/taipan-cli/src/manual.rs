//! What packages of the program carry along: completions for shells, and manual pages.

use std::path::Path;

use clap::Command;
use clap_complete::Shell;
use taipan_lm::Error;

use crate::Failure;

/// Print the completions of a shell.
pub fn completions(shell: Shell, mut program: Command) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut program, "taipan", &mut script);
    Ok(crate::print(&String::from_utf8(script)?)?)
}

/// Print the page of the program, or write it and those of its subcommands to a directory.
pub fn man(program: Command, directory: Option<&Path>) -> Result<(), Failure> {
    let Some(directory) = directory else {
        let mut page = Vec::new();
        clap_mangen::Man::new(program).render(&mut page)?;
        return Ok(crate::print(&String::from_utf8(page)?)?);
    };
    Ok(clap_mangen::generate_to(program, directory).map_err(Error::io(directory))?)
}
