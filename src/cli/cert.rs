//! `rationd cert ca|node`: makes the certificates of a fleet, each set with one command.
//!
//! It decides what a certificate contains; the names in it come from the room `fleet`. Keys are ECDSA P-256, which
//! all common tools read. An existing file is never overwritten.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf, absolute};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, date_time_ymd,
};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use serde_json::json;

use super::args::{CaArgs, CertCommand, NodeArgs};
use super::exit::{Code, ExitError};
use super::globals::{Globals, Output};
use super::output;
use crate::clock;
use crate::fleet::{any_node_name, fleet_name, is_label, node_name};

const DAY: u64 = 24 * 60 * 60;
/// A certificate is valid from one hour before now, because the clocks of a fleet differ.
const SKEW: u64 = 60 * 60;
/// Longest name that `node.name` takes.
const MAX_NAME: usize = 128;

pub(crate) fn run(command: &CertCommand, globals: &Globals) -> anyhow::Result<ExitCode> {
    match command {
        CertCommand::Ca(args) => make_ca(args, globals)?,
        CertCommand::Node(args) => make_node(args, globals)?,
    }
    Ok(Code::Ok.into())
}

/// Writes a CA's certificate and key.
pub(super) fn ca_files(args: &CaArgs) -> anyhow::Result<[PathBuf; 2]> {
    check_fleet(&args.fleet)?;
    let key = KeyPair::generate()?;
    let mut params = named(Vec::new(), &format!("rationd fleet {} CA", args.fleet), in_days(args.days))?;
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    let certificate = params.self_signed(&key)?;
    write(&args.dir, [("ca.pem", certificate.pem(), 0o644), ("ca.key", key.serialize_pem(), 0o600)])
}

fn make_ca(args: &CaArgs, globals: &Globals) -> anyhow::Result<()> {
    let [ca, ca_key] = &ca_files(args)?;
    if globals.output == Output::Json {
        return Ok(output::data(&json!({"ca": ca, "key": ca_key}).to_string())?);
    }
    output::data(&format!(
        "# {} goes to every node; {} to none: who has it can make nodes.\n\
         # Next: rationd cert node --fleet {} --name NODE\n\
         [fleet]\nname = {:?}\nca = {ca:?}",
        ca.display(),
        ca_key.display(),
        args.fleet,
        args.fleet
    ))?;
    Ok(())
}

/// Writes a node's certificate and key; the first of the three is the CA's certificate.
pub(super) fn node_files(args: &NodeArgs) -> anyhow::Result<[PathBuf; 3]> {
    check_fleet(&args.fleet)?;
    let own = match &args.name {
        Some(name) => node_name(&args.fleet, check_name(name)?),
        None => any_node_name(&args.fleet),
    };
    let authority = Authority::read(args.ca_dir.as_ref().unwrap_or(&args.dir))?;
    let key = KeyPair::generate()?;
    let whose = args.name.clone().unwrap_or_else(|| format!("any node of {}", args.fleet));
    let not_after = in_days(args.days).min(authority.not_after);
    let mut params = named(vec![fleet_name(&args.fleet), own], &whose, not_after)?;
    params.is_ca = IsCa::ExplicitNoCa;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    params.use_authority_key_identifier_extension = true;
    let certificate = params.signed_by(&key, &authority.issuer)?;
    let files = write(&args.dir, [("node.pem", certificate.pem(), 0o644), ("node.key", key.serialize_pem(), 0o600)])?;
    let [cert, cert_key] = files;
    Ok([authority.path, cert, cert_key])
}

fn make_node(args: &NodeArgs, globals: &Globals) -> anyhow::Result<()> {
    let [ca, cert, cert_key] = &node_files(args)?;
    let whose = args.name.clone().unwrap_or_else(|| format!("any node of {}", args.fleet));
    if globals.output == Output::Json {
        return Ok(output::data(&json!({"ca": ca, "cert": cert, "key": cert_key}).to_string())?);
    }
    let node = args.name.as_ref().map_or_else(String::new, |name| format!("[node]\nname = {name:?}\n\n"));
    let warning = if args.name.is_some() {
        ""
    } else {
        "# It bears every name: for an image that many nodes share. Who takes it can be as many members as it likes.\n"
    };
    output::data(&format!(
        "{warning}# For the configuration of {whose}:\n\
         {node}[fleet]\nname = {:?}\nlisten = \"0.0.0.0:7946\"\nca = {ca:?}\ncert = {cert:?}\nkey = {cert_key:?}",
        args.fleet
    ))?;
    Ok(())
}

/// A CA that `cert ca` has made, or other tools under the same file names.
struct Authority {
    path: PathBuf,
    issuer: Issuer<'static, KeyPair>,
    /// When it expires, in Unix seconds.
    not_after: u64,
}

impl Authority {
    fn read(dir: &Path) -> anyhow::Result<Self> {
        let path = absolute(dir.join("ca.pem"))?;
        let key_path = path.with_file_name("ca.key");
        let pem = text(&path)?;
        let key = KeyPair::from_pem(&text(&key_path)?);
        let key = key.with_context(|| format!("{}: no private key in PEM", key_path.display()))?;
        let no_ca = || format!("{}: no CA certificate in PEM", path.display());
        let certificate = CertificateDer::from_pem_slice(pem.as_bytes()).with_context(no_ca)?;
        let (_, parsed) = x509_parser::parse_x509_certificate(&certificate).with_context(no_ca)?;
        if *parsed.public_key().subject_public_key.data != *key.public_key_raw() {
            let message = format!("{} is not the key of {}", key_path.display(), path.display());
            return Err(ExitError::new(Code::System, message).into());
        }
        let not_after = u64::try_from(parsed.validity().not_after.timestamp()).unwrap_or(0);
        let issuer = Issuer::from_ca_cert_pem(&pem, key).with_context(no_ca)?;
        Ok(Self { path, issuer, not_after })
    }
}

fn text(path: &Path) -> Result<String, ExitError> {
    fs::read_to_string(path).map_err(|error| {
        let next = "make a CA with `rationd cert ca`, or say where it is with --ca-dir";
        ExitError::new(Code::System, format!("{}: {error}; {next}", path.display()))
    })
}

/// The parameters of a certificate for these DNS names, which is valid from now until `not_after` (Unix seconds).
fn named(names: Vec<String>, whose: &str, not_after: u64) -> anyhow::Result<CertificateParams> {
    let mut params = CertificateParams::new(names)?;
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, whose);
    let epoch = date_time_ymd(1970, 1, 1);
    params.not_before = epoch + Duration::from_secs(now().saturating_sub(SKEW));
    params.not_after = epoch + Duration::from_secs(not_after);
    Ok(params)
}

fn in_days(days: u32) -> u64 {
    now() + u64::from(days) * DAY
}

fn now() -> u64 {
    clock::wall().0 / 1_000_000
}

fn check_fleet(fleet: &str) -> Result<(), ExitError> {
    if is_label(fleet) {
        return Ok(());
    }
    let wanted = "1 to 63 lower-case letters, digits and inner hyphens were wanted";
    Err(ExitError::new(Code::Usage, format!("--fleet is {fleet:?}: {wanted}, like prod")))
}

fn check_name(name: &str) -> Result<&str, ExitError> {
    if (1..=MAX_NAME).contains(&name.len()) && name.bytes().all(|c| c.is_ascii_graphic()) {
        return Ok(name);
    }
    let wanted = "1 to 128 printable ASCII characters without spaces were wanted";
    Err(ExitError::new(Code::Usage, format!("--name is {name:?}: {wanted}, as in node.name")))
}

/// Writes two files, or none of them if one exists already.
fn write(dir: &Path, files: [(&str, String, u32); 2]) -> anyhow::Result<[PathBuf; 2]> {
    fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
    let dir = absolute(dir)?;
    let paths = [dir.join(files[0].0), dir.join(files[1].0)];
    if let Some(path) = paths.iter().find(|path| path.exists()) {
        let message =
            format!("{} exists and is not written over: move it away, or choose another --dir", path.display());
        return Err(ExitError::new(Code::System, message).into());
    }
    for (path, (_, text, mode)) in paths.iter().zip(&files) {
        let mut options = OpenOptions::new();
        let opened = options.write(true).create_new(true).mode(*mode).open(path);
        let written = opened.and_then(|mut file| file.write_all(text.as_bytes()).and_then(|()| file.sync_all()));
        written.with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(paths)
}
