//! `sluicegate trust`: prints the CA of development certificates and how to trust it, and adds it to the trust store
//! of Debian or removes it. Called by the command line.

use std::env;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use jiff::Timestamp;
use rustix::process::geteuid;

use crate::cli::report::{report_bad_config, report_error};
use crate::cli::{ConfigFile, RUNTIME};
use crate::config;
use crate::local_ca::authority::CaCertificate;
use crate::local_ca::debian::{self, TrustStoreError};
use crate::local_ca::{LocalCaError, certificate_path, list_directories, open_ca, read_certificate};
use crate::tls::internal::DOMAINS;

#[derive(Args)]
pub struct TrustOptions {
    #[command(flatten)]
    config: ConfigFile,
    /// Directory of the CA, instead of those that the config names
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,
    /// Make this system trust the CA; Debian and its derivatives only, as root
    #[arg(long, conflicts_with = "uninstall")]
    install: bool,
    /// Remove every CA that --install has added to this system, or with --state only that one, as root
    #[arg(long)]
    uninstall: bool,
}

pub const HELP: &str = "\
The CA is created if it does not exist yet, so you can trust it before the first start. Run this command as the user
of the gateway; only --install and --uninstall need root.

Exit codes: 0 done, 1 failed, 2 bad config or usage.

Examples:
  sluicegate trust -c sluicegate.toml
  sudo sluicegate trust --install --state ~/.local/state/sluicegate/ca
  sudo sluicegate trust --uninstall";

/// Why the command failed.
#[derive(Debug, thiserror::Error)]
enum TrustError {
    #[error(transparent)]
    Ca(#[from] LocalCaError),
    #[error("{error}; run:\n\n  {command}")]
    Root { error: TrustStoreError, command: String },
    #[error("{0}; `sluicegate trust` lists what to do on other systems")]
    Store(TrustStoreError),
    #[error(
        "there is no CA in `{}` yet, and one that is created under sudo would belong to root; run `sluicegate trust` as \
         the user of the gateway first: it prints the command to run with sudo", .0.display()
    )]
    Sudo(PathBuf),
    #[error(
        "the CA in `{}` may sign any name; --install adds only CAs that are limited to development names, which the \
         gateway creates", .0.display()
    )]
    Unconstrained(PathBuf),
    #[error(
        "no listener of `{}` uses development certificates; write tls = {{ internal = true }} in a [[listener]], or name \
         the directory of the CA with --state", .0.display()
    )]
    NoListener(PathBuf),
}

pub fn run_trust(options: &TrustOptions) -> ExitCode {
    let directories = match &options.state {
        state if options.uninstall => return report(uninstall(state.as_deref())),
        Some(directory) => vec![directory.clone()],
        None => match config::load_config(&options.config.config) {
            Ok(config) => list_directories(&config),
            Err(mistakes) => return report_bad_config(&mistakes),
        },
    };
    if directories.is_empty() {
        return report(Err(TrustError::NoListener(options.config.config.clone())));
    }
    let run = if options.install { install } else { explain };
    report(directories.iter().map(|directory| run(directory)).collect())
}

/// Prints the result.
fn report(result: Result<String, TrustError>) -> ExitCode {
    match result {
        Ok(text) => {
            // The reader may have closed the pipe.
            let _ = std::io::stdout().write_all(text.as_bytes());
            ExitCode::SUCCESS
        }
        Err(error) => {
            report_error(error);
            ExitCode::from(RUNTIME)
        }
    }
}

fn install(directory: &Path) -> Result<String, TrustError> {
    let command = install_command(directory);
    if let Err(error) = debian::check_access() {
        if matches!(error, TrustStoreError::NotRoot) {
            // The CA is created here, for the user of the gateway.
            open_ca(directory)?;
            return Err(TrustError::Root { error, command });
        }
        return Err(TrustError::Store(error));
    }
    // Root only reads the certificate: the key belongs to the user of the gateway.
    let certificate = match read_certificate(directory)? {
        Some(certificate) => certificate,
        // Another user runs this process through sudo.
        None if geteuid().is_root() && env::var("SUDO_UID").is_ok_and(|id| id != "0") => {
            return Err(TrustError::Sudo(directory.to_owned()));
        }
        None => open_ca(directory)?.certificate,
    };
    if !certificate.is_constrained() {
        return Err(TrustError::Unconstrained(directory.to_owned()));
    }
    let path = debian::install(&certificate).map_err(TrustError::Store)?;
    Ok(format!(
        "This system now trusts the CA with the SHA-256 fingerprint {}.\n\
         It is in {}; `sluicegate trust --uninstall` removes it.\n\
         Browsers have their own trust stores: `sluicegate trust` lists the commands.\n",
        certificate.fingerprint(),
        path.display()
    ))
}

/// Removes the CA in `state` from this system, or every CA.
fn uninstall(state: Option<&Path>) -> Result<String, TrustError> {
    let certificate = match state {
        None => None,
        Some(directory) => match read_certificate(directory)? {
            None => return Ok(format!("There is no CA in {}.\n", directory.display())),
            certificate => certificate,
        },
    };
    let result = debian::uninstall(certificate.as_ref());
    let command = || match state {
        None => root_command("--uninstall"),
        Some(directory) => {
            let directory = std::path::absolute(directory).unwrap_or_else(|_| directory.to_owned());
            root_command(&format!("--uninstall --state {}", quote(&directory)))
        }
    };
    match result {
        Ok(paths) if paths.is_empty() && state.is_some() => Ok("--install has not added this CA.\n".to_owned()),
        Ok(paths) if paths.is_empty() => Ok("--install has added no CA to this system.\n".to_owned()),
        Ok(paths) => Ok(paths.iter().map(|path| format!("Removed {}.\n", path.display())).collect()),
        Err(error @ TrustStoreError::NotRoot) => Err(TrustError::Root { error, command: command() }),
        Err(error) => Err(TrustError::Store(error)),
    }
}

fn install_command(directory: &Path) -> String {
    let directory = std::path::absolute(directory).unwrap_or_else(|_| directory.to_owned());
    root_command(&format!("--install --state {}", quote(&directory)))
}

/// Returns the command that runs `trust` as root. It has the path of this program, because sudo has its own `PATH`.
fn root_command(options: &str) -> String {
    let program = env::current_exe().map_or_else(|_| "sluicegate".to_owned(), |path| quote(&path));
    let sudo = if geteuid().is_root() { "" } else { "sudo " };
    format!("{sudo}{program} trust {options}")
}

/// Quotes a path for a POSIX shell, if necessary.
fn quote(path: &Path) -> String {
    let text = path.display().to_string();
    match text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"/._-".contains(&byte)) {
        true => text,
        false => format!("'{}'", text.replace('\'', r"'\''")),
    }
}

/// Creates the CA if there is none, and returns the text that explains how to trust it.
fn explain(directory: &Path) -> Result<String, TrustError> {
    let certificate = open_ca(directory)?.certificate;
    let path = certificate_path(&std::path::absolute(directory).unwrap_or_else(|_| directory.to_owned()));
    Ok(instructions(&certificate, &quote(&path), &install_command(directory)))
}

fn instructions(certificate: &CaCertificate, path: &str, install: &str) -> String {
    let (name, until_s) = (certificate.short_name(), certificate.validity.not_after_s);
    let until = Timestamp::from_second(until_s).map_or_else(|_| until_s.to_string(), |at| at.to_string());
    let scope = match certificate.is_constrained() {
        true => format!("private addresses, and names under {}", DOMAINS.join(", ")),
        false => "any name: keep its key safe".to_owned(),
    };
    let (fingerprint, subject) = (certificate.fingerprint(), &certificate.validity.name);
    format!(
        "\
CA:           {subject}
Certificate:  {path}
SHA-256:      {fingerprint}
Valid until:  {until}
Signs:        {scope}

To trust it, run what applies, then restart the client:

  Debian, Ubuntu   {install}
  Fedora, RHEL     sudo cp {path} /etc/pki/ca-trust/source/anchors/{name}.pem && sudo update-ca-trust
  macOS            sudo security add-trusted-cert -d -r trustRoot -k /Library/Keychains/System.keychain {path}
  Windows          certutil -addstore -f Root ca.pem
  Chrome on Linux  certutil -d sql:$HOME/.pki/nssdb -A -t C,, -n {name} -i {path}
                   (certutil is in the package libnss3-tools; `certutil -d sql:$HOME/.pki/nssdb -N` creates the store)
  Firefox          Settings, Privacy & Security, Certificates, View Certificates, Authorities, Import: {path}
  curl             curl --cacert {path} https://localhost:PORT/
  Node.js          NODE_EXTRA_CA_CERTS={path}
  Python           SSL_CERT_FILE={path}; for the requests library REQUESTS_CA_BUNDLE={path}

Never copy ca.key, the file next to the certificate: with it, anyone can impersonate your development sites.
"
    )
}
