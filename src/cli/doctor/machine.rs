//! Checks of the configuration's files and of this machine: secrets, the socket's place, doors, the record and denial
//! files, open files, memory, unit.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;
use std::{fs, io};

use rustix::fs::{Access, access, statvfs};
use rustix::process::{Resource, getrlimit};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

use super::super::{key_files, memory, open_files};
use super::check::{Check, Look};
use super::lapse;
use super::patient::Patient;
use crate::clock;
use crate::serve::recording::file as arrivals;

/// Mode bit: everybody may write.
const OPEN_TO_WRITE: u32 = 0o002;
/// Mode bit of a directory: only a file's owner may replace it.
const STICKY: u32 = 0o1000;

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "config.valid",
        why: "A daemon with a wrong configuration does not start, and a reload of one is refused.",
        next: "`rationd config check` points at each line.",
        see: "configure.md#layers",
        look: valid,
    },
    Check {
        id: "config.policies",
        why: "Without a policy of your own there is the sample `api`, which limits nothing that anybody asks for.",
        next: "Write a file with `rationd config init`, and name it with --config.",
        see: "configure.md",
        look: policies,
    },
    Check {
        id: "config.secrets",
        why: "Who reads a private key is a member of the fleet, and who reads a password may change counts: the daemon \
              does not start.",
        next: "chmod o= FILE.",
        see: "operate/deploy.md#who-may-ask",
        look: secrets,
    },
    Check {
        id: "config.password",
        why: "A password in a file that everybody on this machine can read is none.",
        next: "Move it from store.url to a file of its own, store.password_file, or chmod o= the configuration.",
        see: "operate/redis.md",
        look: password,
    },
    Check {
        id: "socket.directory",
        why: "Who may write into the directory can put a socket of their own in the place of the daemon's, and decide.",
        next: "Choose a directory that only the daemon's user may write, like /run/rationd.",
        see: "operate/deploy.md#who-may-ask",
        look: directory,
    },
    Check {
        id: "socket.mode",
        why: "Every program of this machine may spend everybody's tokens.",
        next: "Set listen.mode = \"0660\" and listen.group, or list users in listen.allow_uids.",
        see: "operate/deploy.md#who-may-ask",
        look: mode,
    },
    Check {
        id: "doors.addresses",
        why: "The admin address and Envoy's door ask nobody for a password: who reaches them reads, or spends.",
        next: "Choose a loopback address or a Unix socket, or close the port to all but those who need it.",
        see: "operate/monitoring.md#the-admin-address",
        look: addresses,
    },
    Check {
        id: "doors.envoy",
        why: "Envoy asks by descriptors, and what no route fits is not limited.",
        next: "Write [[descriptors.DOMAIN]], or make one of an existing configuration: `rationd config import-envoy`.",
        see: "clients/envoy.md#routes",
        look: envoy,
    },
    Check {
        id: "doors.tcp",
        why: "Every program of this machine reaches a loopback address, whatever the socket's mode and allow_uids say.",
        next: "Set listen.tcp_users (passwords) or listen.tcp_ca (certificates), or leave listen.tcp off.",
        see: "clients/tcp.md",
        look: tcp,
    },
    Check {
        id: "doors.certificate",
        why: "Clients refuse a server whose certificate has lapsed: nobody is answered over TCP.",
        next: "Replace listen.tcp_cert and listen.tcp_key, and `rationd reload`.",
        see: "clients/tcp.md",
        look: tcp_certificate,
    },
    Check {
        id: "machine.record",
        why: "The daemon does not start when it cannot record, and what a full disk does not take is missing in every plan.",
        next: "Name a file of its own in a directory that the daemon's user may write, with room for record.size.",
        see: "operate/plan.md",
        look: record,
    },
    Check {
        id: "machine.denials",
        why: "The daemon starts and goes on, but nobody reads what was denied.",
        next: "Name a file in a directory that the daemon's user may write: under the unit, below /var/log/rationd.",
        see: "operate/top.md#what-is-denied",
        look: denials,
    },
    Check {
        id: "machine.files",
        why: "Each connection is an open file: fewer are let in than listen.max_connections says.",
        next: "Raise the limit of open files: LimitNOFILE= of the unit, or ulimit -Hn.",
        see: "operate/deploy.md#open-files-and-logs",
        look: files,
    },
    Check {
        id: "machine.memory",
        why: "Fewer keys are held than node.max_keys says, and a new key is denied as overload when the table is full.",
        next: "Raise node.max_memory, or lower node.max_keys to what you need.",
        see: "operate/capacity.md#memory",
        look: memory_fits,
    },
    Check {
        id: "machine.unit",
        why: "A daemon that cannot go on ends itself, so that it is started again: nobody would.",
        next: "Install a unit rationd.service with Type=notify, Restart=always and WatchdogSec=.",
        see: "operate/systemd.md",
        look: unit,
    },
];

fn valid(patient: &Patient) -> Look {
    match &patient.loaded {
        Err(errors) => Look::Fatal(errors.to_string()),
        Ok((loaded, _)) => {
            let files: Vec<_> = loaded.files.iter().map(|file| file.display().to_string()).collect();
            let from = if files.is_empty() { "no file, built-in defaults".to_owned() } else { files.join(", ") };
            Look::Ok(format!("{} policies ({from})", loaded.policies.iter().count()))
        }
    }
}

fn policies(patient: &Patient) -> Look {
    let Ok((loaded, _)) = &patient.loaded else { return Look::Apart };
    let set = loaded.entries().iter().any(|entry| entry.key.starts_with("policy.") && entry.origin != "default");
    match loaded.policies.iter().count() {
        0 => Look::Warning("there is no policy: nothing is limited".to_owned()),
        _ if !set => Look::Warning("only the built-in sample policy".to_owned()),
        count => Look::Ok(format!("{count} of your own")),
    }
}

fn secrets(patient: &Patient) -> Look {
    let Some(config) = patient.config() else { return Look::Apart };
    Look::none_of(key_files::exposed(config), Look::Fatal, "no secret is open to everybody")
}

fn password(patient: &Patient) -> Look {
    let Ok((loaded, _)) = &patient.loaded else { return Look::Apart };
    let Some(entry) = loaded.entry("store.url") else { return Look::Apart };
    if !entry.value.as_deref().is_some_and(|url| url.contains(":***@")) {
        return Look::Apart;
    }
    let named = loaded.files.iter().filter(|file| entry.origin.starts_with(&*file.display().to_string()));
    let open = named.filter(|file| mode_of(file).is_some_and(|mode| mode & 0o004 != 0));
    let findings =
        open.map(|file| format!("{} holds the store's password and can be read by everybody", file.display()));
    Look::none_of(findings.collect(), Look::Warning, "only its owner and group read the store's password")
}

fn directory(patient: &Patient) -> Look {
    let Some(config) = patient.config() else { return Look::Apart };
    let socket = &config.listen.socket;
    let directory = directory_of(socket);
    let shown = directory.display();
    match mode_of(directory) {
        None => Look::Ok(format!("{shown} is not there yet: the daemon makes it")),
        Some(mode) if mode & OPEN_TO_WRITE != 0 && mode & STICKY == 0 => {
            Look::Fatal(format!("everybody may write into {shown} (mode {:04o})", mode & 0o7777))
        }
        Some(mode) if mode & OPEN_TO_WRITE != 0 => Look::Warning(format!(
            "everybody may write into {shown}, and so listen before the daemon does (mode {:04o})",
            mode & 0o7777
        )),
        Some(mode) => Look::Ok(format!("{shown}, mode {:04o}", mode & 0o7777)),
    }
}

fn mode_of(path: &Path) -> Option<u32> {
    Some(fs::metadata(path).ok()?.permissions().mode())
}

fn mode(patient: &Patient) -> Look {
    let Some(config) = patient.config() else { return Look::Apart };
    let (mode, listed) = (config.listen.mode, config.listen.allow_uids.is_some());
    match mode & 0o006 {
        0 => Look::Ok(format!("mode {mode:04o}")),
        _ if listed => Look::Ok(format!("mode {mode:04o}, for the users of listen.allow_uids")),
        _ => Look::Warning(format!("listen.mode is {mode:04o}, and listen.allow_uids is not set")),
    }
}

fn addresses(patient: &Patient) -> Look {
    let Some(config) = patient.config() else { return Look::Apart };
    let mut open = Vec::new();
    if let Some(admin) = config.listen.admin.filter(|admin| !admin.ip().is_loopback()) {
        let may = if config.listen.admin_checks { "reads it and spends" } else { "reads it" };
        open.push(format!("listen.admin is {admin}: whoever reaches it {may}"));
    }
    if let Some(crate::config::ListenAddress::Address(address)) = &config.listen.envoy
        && !address.ip().is_loopback()
    {
        open.push(format!("listen.envoy is {address}: whoever reaches it spends"));
    }
    Look::none_of(open, Look::Warning, "none beyond this machine")
}

fn envoy(patient: &Patient) -> Look {
    let Ok((loaded, _)) = &patient.loaded else { return Look::Apart };
    let Some(door) = &loaded.config.listen.envoy else { return Look::Apart };
    match loaded.policies.routes().names().count() {
        0 => Look::Warning(format!("listen.envoy is {door}, and there are no [descriptors]: nothing is limited")),
        domains => Look::Ok(format!("{door}, {domains} domains")),
    }
}

fn tcp(patient: &Patient) -> Look {
    let Some(config) = patient.config() else { return Look::Apart };
    let Some(address) = config.listen.tcp else { return Look::Apart };
    match (&config.listen.tcp_users, &config.listen.tcp_ca) {
        (None, None) => Look::Warning(format!("listen.tcp is {address}: every program of this machine may spend")),
        (Some(_), None) => Look::Ok(format!("{address}, for who knows a password")),
        (None, Some(_)) => Look::Ok(format!("{address}, for who has a certificate")),
        (Some(_), Some(_)) => Look::Ok(format!("{address}, for who has a certificate and knows a password")),
    }
}

fn tcp_certificate(patient: &Patient) -> Look {
    let Some(config) = patient.config() else { return Look::Apart };
    let Some(path) = &config.listen.tcp_cert else { return Look::Apart };
    let now = Duration::from_micros(clock::wall().0);
    let first = CertificateDer::from_pem_file(path).map_err(|error| error.to_string());
    match first.and_then(|certificate| lapse::days_left(&certificate, now)) {
        Err(problem) => Look::Fatal(format!("{}: {problem}", path.display())),
        Ok(days) if days < 0 => Look::Fatal(format!("{} has lapsed", path.display())),
        Ok(days) if days < lapse::SOON => Look::Warning(format!("{} lapses in {days} days", path.display())),
        Ok(days) => Look::Ok(format!("{}, good for {days} days", path.display())),
    }
}

fn record(patient: &Patient) -> Look {
    let Some(config) = patient.config() else { return Look::Apart };
    let Some(path) = &config.record.file else { return Look::Apart };
    let shown = path.display();
    let taken = match fs::metadata(path) {
        Ok(metadata) => match arrivals::inspect(path) {
            Ok(()) => metadata.len(),
            Err(problem) => return Look::Fatal(format!("{shown}: {problem}")),
        },
        Err(_) => 0,
    };
    let directory = directory_of(path);
    if let Err(problem) = access(directory, Access::WRITE_OK | Access::EXEC_OK) {
        return Look::Fatal(format!("{}: {}", directory.display(), io::Error::from(problem)));
    }
    let free = statvfs(directory).map_or(u64::MAX, |disk| disk.f_bavail.saturating_mul(disk.f_frsize));
    let wanted = config.record.size.saturating_sub(taken);
    if free < wanted {
        return Look::Warning(format!("{shown} may take {} MiB more, and {} are free", wanted >> 20, free >> 20));
    }
    Look::Ok(format!("{shown}, {} MiB at most", config.record.size >> 20))
}

/// The directory of a file, whether or not it exists.
fn directory_of(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

fn denials(patient: &Patient) -> Look {
    let Some(config) = patient.config() else { return Look::Apart };
    let Some(path) = &config.denials.file else { return Look::Apart };
    let shown = path.display();
    // Nothing is opened here. Opening a pipe without a reader would block, and a file created here would belong to the
    // wrong user.
    let seen = match fs::metadata(path) {
        Ok(metadata) if metadata.is_dir() => return Look::Warning(format!("{shown} is a directory")),
        Ok(_) => access(path, Access::WRITE_OK),
        Err(_) => access(directory_of(path), Access::WRITE_OK | Access::EXEC_OK),
    };
    match seen {
        Ok(()) => Look::Ok(shown.to_string()),
        Err(problem) => Look::Warning(format!("{shown}: {}", io::Error::from(problem))),
    }
}

fn files(patient: &Patient) -> Look {
    let Some(config) = patient.config() else { return Look::Apart };
    let threads = match config.listen.threads {
        0 => std::thread::available_parallelism().map_or(1, usize::from),
        threads => threads,
    };
    let wanted = open_files::wanted(config.listen.max_connections, threads, &config.listen);
    match getrlimit(Resource::Nofile).maximum {
        Some(most) if most < wanted => Look::Warning(format!(
            "at most {most} open files, where {wanted} are needed for {} connections",
            config.listen.max_connections
        )),
        Some(most) => Look::Ok(format!("at most {most} open files, {wanted} are needed")),
        None => Look::Ok(format!("any number of open files, {wanted} are needed")),
    }
}

fn memory_fits(patient: &Patient) -> Look {
    let Some(config) = patient.config() else { return Look::Apart };
    let each = if config.store.url == "memory:" { memory::EMBEDDED_KEY } else { memory::LEASED_KEY };
    let budget = memory::budget(config.node.max_memory);
    let (fits, wanted) = (memory::keys_within(budget, each), config.node.max_keys);
    let seen = format!("{fits} keys fit into half of {} MiB, node.max_keys is {wanted}", budget >> 20);
    if fits < wanted { Look::Warning(seen) } else { Look::Ok(seen) }
}

fn unit(patient: &Patient) -> Look {
    if patient.units.is_empty() {
        return Look::Apart;
    }
    let Some(path) = patient.units.iter().map(|place| place.join("rationd.service")).find(|path| path.exists()) else {
        return Look::Warning("systemd is in charge here, and there is no unit rationd.service".to_owned());
    };
    let (shown, text) = (path.display(), fs::read_to_string(&path).unwrap_or_default());
    let restarts = text.lines().filter_map(|line| line.trim().strip_prefix("Restart=")).next_back();
    match restarts {
        None | Some("no") => Look::Warning(format!("{shown} says nothing of Restart=, or no")),
        Some(restarts) => Look::Ok(format!("{shown} restarts: {restarts}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_units(units: Vec<std::path::PathBuf>) -> Patient {
        Patient { units, ..Patient::of("", None) }
    }

    #[test]
    fn a_unit_that_does_not_restart_is_told_of() {
        let places = [tempfile::tempdir().expect("a directory"), tempfile::tempdir().expect("a directory")];
        let units: Vec<_> = places.iter().map(|place| place.path().to_owned()).collect();
        assert_eq!(unit(&with_units(Vec::new())), Look::Apart);
        let path = units[1].join("rationd.service");
        // "machine.unit", "warning": nothing is there yet.
        assert_eq!(unit(&with_units(units.clone())).word(), "warning");
        for (text, word) in [
            ("[Service]\nExecStart=rationd serve\n", "warning"),
            ("[Service]\nRestart=no\n", "warning"),
            ("[Service]\nRestart=no\nRestart=always\n", "ok"),
        ] {
            fs::write(&path, text).expect("a file");
            assert_eq!(unit(&with_units(units.clone())).word(), word, "{text}");
        }
    }
}
