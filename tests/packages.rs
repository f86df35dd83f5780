//! What lies in deploy/systemd and deploy/package: systemd has nothing to say of the units, the daemon makes no system
//! call that they forbid and serves the socket that systemd hands over; and a real dpkg, and a real rpm, install,
//! upgrade and remove the packages in a copy of this system that is thrown away.
//!
//! What is missing is told, and skipped: `tests/run tools` installs it for root.

use crate::support;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use support::deployed::{found, succeeds};
use support::fleet::Issuer;
use support::poll::wait_for;
use support::process::{signal, without_settings};
use support::skip::skipped;
use tempfile::TempDir;

/// Most that `systemd-analyze security` may come to, in tenths.
const MOST_EXPOSURE: u32 = 15;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Whether all of these programs are here; says what is skipped where not.
fn here(what: &str, programs: &[&str]) -> bool {
    let missing: Vec<_> = programs.iter().filter(|name| found(name).is_none()).collect();
    if !missing.is_empty() {
        skipped(what, &format!("no {missing:?} here; `tests/run tools` says more"), &programs.join(" "));
    }
    missing.is_empty()
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&[&output.stdout[..], &output.stderr].concat()).into_owned()
}

/// What a command prints, which ends well.
fn says(command: &mut Command) -> String {
    let output = command.stdin(Stdio::null()).output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {}", text(&output));
    text(&output)
}

/// The units with this build's daemon in them.
fn units() -> (TempDir, [PathBuf; 2]) {
    let directory = TempDir::new().expect("a directory");
    let paths = ["rationd.service", "rationd.socket"].map(|name| {
        let unit = fs::read_to_string(root().join("deploy/systemd").join(name)).expect("a unit");
        let path = directory.path().join(name);
        fs::write(&path, unit.replace("/usr/bin/rationd", env!("CARGO_BIN_EXE_rationd"))).expect("a file");
        path
    });
    (directory, paths)
}

#[test]
fn systemd_has_nothing_to_say_of_the_units() {
    if !here("systemd's judgement of the units", &["systemd-analyze"]) {
        return;
    }
    let (_directory, units) = units();
    let said = says(Command::new("systemd-analyze").args(["verify", "--man=no"]).args(&units));
    assert_eq!(said.trim(), "", "systemd-analyze verify");
    let threshold = format!("--threshold={MOST_EXPOSURE}");
    let judged = ["security", "--offline=true", "--no-pager", &threshold];
    let said = says(Command::new("systemd-analyze").args(judged).arg(&units[0]));
    assert!(said.contains("Overall exposure level"), "{said}");
}

/// Whoever takes the comment away from a file that the sample configuration names gets that file: the unit sees all else
/// read-only, and a daemon that cannot record does not start.
#[test]
fn the_unit_may_write_what_the_sample_configuration_names() {
    let unit = fs::read_to_string(root().join("deploy/systemd/rationd.service")).expect("a unit");
    let made = |key: &str, below: &str| {
        let names =
            unit.lines().filter_map(|line| line.strip_prefix(&format!("{key}="))).flat_map(str::split_whitespace);
        names.map(|name| Path::new(below).join(name)).collect::<Vec<_>>()
    };
    let made =
        [made("RuntimeDirectory", "/run"), made("StateDirectory", "/var/lib"), made("LogsDirectory", "/var/log")];
    let sample = fs::read_to_string(root().join("config/rationd.toml")).expect("the sample");
    let named = |line: &str| {
        let path = line.strip_prefix("# file = \"").or_else(|| line.strip_prefix("# socket = \""))?;
        Some(PathBuf::from(path.strip_suffix('"')?))
    };
    let named: Vec<_> = sample.lines().filter_map(named).collect();
    assert_eq!(named.len(), 3, "the socket, the file of denials and that of arrivals: {named:?}");
    let elsewhere: Vec<_> =
        named.iter().filter(|path| !made.concat().iter().any(|place| path.starts_with(place))).collect();
    assert!(elsewhere.is_empty(), "the unit has no directory for {elsewhere:?}");
}

/// The system calls of a set like `@chown`, with those of the sets in it.
fn set(name: &str, calls: &mut BTreeSet<String>) {
    let said = says(Command::new("systemd-analyze").args(["syscall-filter", "--no-pager", name]));
    for word in said.lines().skip(1).map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')) {
        if word.starts_with('@') {
            set(word, calls);
        } else {
            calls.insert(word.to_owned());
        }
    }
}

/// What the lines `SystemCallFilter=` of a unit let through: the first allows, and later ones add and take away.
fn allowed(unit: &str) -> BTreeSet<String> {
    let mut allowed = BTreeSet::new();
    for line in unit.lines().filter_map(|line| line.strip_prefix("SystemCallFilter=")) {
        let mut named = BTreeSet::new();
        line.trim_start_matches('~').split_whitespace().for_each(|name| set(name, &mut named));
        if line.starts_with('~') {
            allowed.retain(|call| !named.contains(call));
        } else {
            allowed.extend(named);
        }
    }
    assert!(allowed.contains("read") && !allowed.contains("reboot"), "{allowed:?}");
    allowed
}

#[test]
fn the_daemon_makes_no_system_call_that_its_unit_forbids() {
    let what = "the unit's filter of system calls";
    if !here(what, &["systemd-analyze", "strace"]) {
        return;
    }
    if !succeeds("strace", &["-f", "true"]) {
        return skipped(what, "nothing may be traced here", "tracing");
    }
    let directory = TempDir::new().expect("a directory");
    let path = |name: &str| directory.path().join(name);
    let (socket, envoy) = (path("rationd.sock"), path("envoy.sock"));
    // A store by name, which is not there: the name is resolved, and calls go out.
    // It has all that an operator may turn on: TLS over TCP, a fleet, what is recorded, and lines about denials.
    let issuer = Issuer::new("prod");
    let fleet = issuer.node("a");
    let file = |key: &str| {
        let line = fleet.lines().find_map(|line| line.strip_prefix(&format!("{key} = ")));
        line.expect("the command prints it").to_owned()
    };
    let tcp = format!("tcp = \"127.0.0.1:0\"\ntcp_cert = {}\ntcp_key = {}\n", file("cert"), file("key"));
    let config = format!(
        "[listen]\nsocket = {socket:?}\nenvoy = {envoy:?}\nadmin = \"127.0.0.1:0\"\n{tcp}[store]\nurl = \"redis://localhost:1\"\n\
         [record]\nfile = \"arrivals\"\n[denials]\nfile = \"denials\"\n\
         [policy.api]\nlimits = [\"5/1h\"]\n[policy.api.override.evil]\nblocked = true\n{fleet}"
    );
    fs::write(path("rationd.toml"), config).expect("a file");
    let mut command = Command::new("strace");
    without_settings(&mut command);
    let log = fs::File::create(path("log")).expect("a log");
    command.args(["-f", "-qq", "-o"]).arg(path("trace")).arg(env!("CARGO_BIN_EXE_rationd"));
    command.arg("--config").arg(path("rationd.toml")).arg("serve").stdin(Stdio::null()).stdout(Stdio::null());
    let mut traced = command.stderr(log).spawn().expect("strace is here");
    let log = || fs::read_to_string(path("log")).unwrap_or_default();
    wait_for("it listens", 60, || {
        assert!(traced.try_wait().expect("it is our child").is_none(), "it ended: {}", log());
        log().contains("listening on").then_some(())
    });
    let ask = |words: &[&str]| {
        let mut client = Command::new(env!("CARGO_BIN_EXE_rationd"));
        without_settings(&mut client);
        client.arg("--socket").arg(&socket).args(words).stdin(Stdio::null()).output().expect("it is built")
    };
    let asked = ask(&["check", "api", "k"]);
    assert!(asked.status.code().is_some_and(|code| code <= 1), "a decision: {}{}", text(&asked), log());
    wait_for("a denial is told of in the file", 60, || {
        let _ = ask(&["check", "api", "evil"]);
        fs::read_to_string(path("denials")).is_ok_and(|text| text.contains("\"policy\":\"api\"")).then_some(())
    });
    assert!(path("arrivals").exists(), "what comes is recorded");
    assert!(ask(&["reload"]).status.success());
    let tasks = fs::read_to_string(format!("/proc/{0}/task/{0}/children", traced.id())).expect("strace has a child");
    signal(tasks.trim().parse().expect("one child"), "TERM");
    let ended = wait_for("it leaves", 60, || traced.try_wait().expect("it is our child"));
    assert!(ended.success(), "{ended}: {}", log());

    let unit = fs::read_to_string(root().join("deploy/systemd/rationd.service")).expect("a unit");
    let allowed = allowed(&unit);
    let trace = fs::read_to_string(path("trace")).expect("a trace");
    let call = |line: &str| {
        let (name, _) = line.split_once(' ')?.1.trim_start().split_once('(')?;
        name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_').then(|| name.to_owned())
    };
    let made: BTreeSet<String> = trace.lines().filter_map(call).collect();
    assert!(made.len() > 30 && made.iter().any(|call| call.contains("chown")), "{made:?}");
    let forbidden: Vec<_> = made.difference(&allowed).collect();
    assert!(forbidden.is_empty(), "{forbidden:?}");
}

#[test]
fn a_socket_that_systemd_hands_over_is_served() {
    if !here("a socket from systemd itself", &["systemd-socket-activate"]) {
        return;
    }
    let directory = TempDir::new().expect("a directory");
    let socket = directory.path().join("rationd.sock");
    let config = format!("[listen]\nsocket = {socket:?}\nadmin = \"off\"\n[policy.api]\nlimits = [\"5/1h fixed\"]\n");
    let file = directory.path().join("rationd.toml");
    fs::write(&file, config).expect("a file");
    let mut command = Command::new("systemd-socket-activate");
    without_settings(&mut command);
    command.arg(format!("--listen={}", socket.display())).arg(env!("CARGO_BIN_EXE_rationd"));
    command.arg("--config").arg(&file).arg("serve");
    let mut activated =
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it is here");
    wait_for("systemd listens", 20, || socket.exists().then_some(()));
    // The first who asks is who has it started.
    let mut client = Command::new(env!("CARGO_BIN_EXE_rationd"));
    without_settings(&mut client);
    let answer = says(client.arg("--socket").arg(&socket).args(["check", "api", "k"]));
    assert!(answer.contains("4 of 5 left"), "{answer}");
    signal(activated.id(), "TERM");
    wait_for("it leaves", 20, || activated.try_wait().expect("it is our child"));
    assert!(socket.exists(), "the socket is systemd's");
}

/// A package of this build's daemon, stripped of what makes it large, as of another version.
fn package(kind: &str, version: &str, directory: &Path) -> PathBuf {
    let binary = directory.join("rationd");
    if !binary.exists() {
        says(Command::new("strip").arg("-o").arg(&binary).arg(env!("CARGO_BIN_EXE_rationd")));
    }
    let mut build = Command::new(root().join("deploy/package/build"));
    build.arg(kind).arg(&binary).arg(directory).arg(version).env("DPKG_DEB_COMPRESSOR_TYPE", "none");
    let said = build.stdin(Stdio::null()).output().expect("there is a shell");
    assert!(said.status.success(), "{}", text(&said));
    PathBuf::from(String::from_utf8(said.stdout).expect("a path").trim())
}

/// Runs `script` as root in a copy of this system that is gone afterwards, with `directory` as its /packages.
fn in_a_copy_of_this_system(directory: &Path, script: &str) -> Output {
    let enter = "set -eu
        mount -t tmpfs none \"$1/copy\"
        mkdir \"$1/copy/upper\" \"$1/copy/work\" \"$1/copy/whole\"
        mount -t overlay -o \"lowerdir=/,upperdir=$1/copy/upper,workdir=$1/copy/work\" overlay \"$1/copy/whole\"
        mount -t proc proc \"$1/copy/whole/proc\"
        mount --bind /dev \"$1/copy/whole/dev\"
        mkdir \"$1/copy/whole/packages\"
        mount --bind \"$1\" \"$1/copy/whole/packages\"
        exec chroot \"$1/copy/whole\" sh -euc \"$2\"";
    fs::create_dir(directory.join("copy")).expect("a directory");
    let mut command = Command::new("unshare");
    command.args(["--mount", "--pid", "--fork", "--kill-child", "sh", "-c", enter, "sh"]).arg(directory).arg(script);
    command.env("DEBIAN_FRONTEND", "noninteractive").stdin(Stdio::null());
    command.output().expect("it is here")
}

/// Whether this machine lets its root have such a copy.
fn may_copy(what: &str, programs: &[&str]) -> bool {
    if !here(what, programs) {
        return false;
    }
    let probe = "d=$(mktemp -d) && mount -t tmpfs none $d && mkdir $d/u $d/w $d/m &&
        mount -t overlay -o lowerdir=/,upperdir=$d/u,workdir=$d/w overlay $d/m";
    let may = succeeds("unshare", &["--mount", "sh", "-c", probe]);
    if !may {
        skipped(what, "only root may, where overlays may be mounted", "root overlay");
    }
    may
}

/// What both packages bring: who may read what, and that the unit's user can; the manual pages and completions that this
/// binary makes. Where zsh looks for completions each package says itself.
const INSTALLED: &str = r#"
test "$(stat -c '%a %U:%G' /usr/bin/rationd)" = '755 root:root'
test "$(stat -c '%a %U:%G' /etc/rationd)" = '750 root:rationd'
test "$(stat -c '%a %U:%G' /etc/rationd/policies.d)" = '750 root:rationd'
test "$(stat -c '%a %U:%G' /etc/rationd/rationd.toml)" = '640 root:rationd'
test "$(id -gn rationd)" = rationd
test -e /usr/lib/systemd/system/rationd.service
test -e /usr/lib/systemd/system/rationd.socket
test "$(stat -c '%a %U:%G' /etc/logrotate.d/rationd)" = '644 root:root'
if command -v logrotate; then
    : The unit makes the directory, and the daemon the file.
    install -d -o rationd -g rationd -m 750 /var/log/rationd
    setpriv --reuid=rationd --regid=rationd --clear-groups sh -c 'umask 077; echo {} >/var/log/rationd/denials.ndjson'
    logrotate -f -s /rotated /etc/logrotate.d/rationd
    grep -qx '{}' /var/log/rationd/denials.ndjson.1
    ! test -e /var/log/rationd/denials.ndjson
fi
setpriv --reuid=rationd --regid=rationd --clear-groups rationd --config /etc/rationd/rationd.toml config check
! setpriv --reuid=nobody --regid=nogroup --clear-groups cat /etc/rationd/rationd.toml
rationd man --dir /pages
test "$(ls /pages | wc -l)" -gt 20
for page in /pages/*.1; do
    gzip -dc "/usr/share/man/man1/${page##*/}.gz" | cmp - "$page"
    test "$(stat -c '%a %U:%G' "/usr/share/man/man1/${page##*/}.gz")" = '644 root:root'
done
rationd completions bash | cmp - /usr/share/bash-completion/completions/rationd
rationd completions fish | cmp - /usr/share/fish/vendor_completions.d/rationd.fish
rationd completions elvish | cmp - /usr/share/elvish/lib/rationd.elv
rationd completions powershell | cmp - /usr/share/rationd/completions.ps1
"#;

#[test]
fn a_deb_is_installed_upgraded_and_removed() {
    let programs = ["dpkg", "dpkg-deb", "systemd-sysusers", "deb-systemd-helper", "setpriv", "strip"];
    if !may_copy("the Debian package", &programs) {
        return;
    }
    let directory = TempDir::new().expect("a directory");
    for (version, name) in [("1.0", "first.deb"), ("2.0", "second.deb")] {
        fs::rename(package("deb", version, directory.path()), directory.path().join(name)).expect("it was built");
    }
    let script = format!(
        r#"
        export PATH=$PATH:/usr/sbin:/sbin
        : Images of containers often leave manual pages out.
        dpkg -i --path-include='/usr/share/*' /packages/first.deb
        {INSTALLED}
        rationd completions zsh | cmp - /usr/share/zsh/vendor-completions/_rationd
        test -L /etc/systemd/system/sockets.target.wants/rationd.socket
        test -L /etc/systemd/system/multi-user.target.wants/rationd.service
        echo 'an upgrade keeps what an administrator has changed, enabled or not'
        echo '# mine' >>/etc/rationd/rationd.toml
        chmod 0600 /etc/rationd/rationd.toml
        echo '# mine' >/etc/rationd/policies.d/mine.toml
        systemctl disable rationd.service
        dpkg -i /packages/second.deb
        test "$(dpkg-query -f '${{Version}}' -W rationd)" = 2.0
        grep -qx '# mine' /etc/rationd/rationd.toml
        test "$(stat -c %a /etc/rationd/rationd.toml)" = 600
        ! test -e /etc/systemd/system/multi-user.target.wants/rationd.service
        echo 'also where the default has changed'
        dpkg-deb -R /packages/second.deb /third
        echo '# the package of later' >>/third/etc/rationd/rationd.toml
        sed -i 's/^Version: .*/Version: 3.0/' /third/DEBIAN/control
        dpkg-deb -Znone --root-owner-group --build /third /third.deb
        dpkg --force-confold -i /third.deb
        grep -qx '# mine' /etc/rationd/rationd.toml
        grep -qx '# the package of later' /etc/rationd/rationd.toml.dpkg-dist
        echo 'removed, it leaves the configuration; purged, only what it did not bring'
        dpkg -r rationd
        ! test -e /usr/bin/rationd
        ! test -e /usr/share/man/man1/rationd.1.gz
        grep -qx '# mine' /etc/rationd/rationd.toml
        dpkg -P rationd
        ! test -e /etc/rationd/rationd.toml
        ! test -e /etc/logrotate.d/rationd
        ! test -e /etc/systemd/system/sockets.target.wants/rationd.socket
        test -e /etc/rationd/policies.d/mine.toml
        id rationd
        "#
    );
    let output = in_a_copy_of_this_system(directory.path(), &script);
    assert!(output.status.success(), "{}", text(&output));
    assert!(!Path::new("/usr/lib/systemd/system/rationd.service").exists(), "it was a copy");
}

#[test]
fn the_same_binary_gives_the_same_deb() {
    if !here("the Debian package", &["dpkg-deb", "strip"]) {
        return;
    }
    let directories = [TempDir::new().expect("a directory"), TempDir::new().expect("a directory")];
    let [first, second] = directories
        .each_ref()
        .map(|directory| fs::read(package("deb", "1.0", directory.path())).expect("it was built"));
    assert!(first == second, "two builds differ");
}

#[test]
fn an_rpm_is_installed_upgraded_and_removed() {
    if !may_copy("the RPM package", &["rpm", "rpmbuild", "setpriv", "strip"]) {
        return;
    }
    let directory = TempDir::new().expect("a directory");
    for (version, name) in [("1.0", "first.rpm"), ("2.0", "second.rpm")] {
        fs::rename(package("rpm", version, directory.path()), directory.path().join(name)).expect("it was built");
    }
    let script = format!(
        r#"
        export PATH=$PATH:/usr/sbin:/sbin
        rpm --initdb
        rpm -i --nodeps /packages/first.rpm
        {INSTALLED}
        rationd completions zsh | cmp - /usr/share/zsh/site-functions/_rationd
        echo '# mine' >>/etc/rationd/rationd.toml
        rpm -U --nodeps /packages/second.rpm
        test "$(rpm -q --qf '%{{VERSION}}' rationd)" = 2.0
        grep -qx '# mine' /etc/rationd/rationd.toml
        rpm -e --nodeps rationd
        ! test -e /usr/bin/rationd
        ! test -e /usr/share/man/man1/rationd.1.gz
        grep -qx '# mine' /etc/rationd/rationd.toml.rpmsave
        "#
    );
    let output = in_a_copy_of_this_system(directory.path(), &script);
    assert!(output.status.success(), "{}", text(&output));
}

/// The bill of materials names each crate that the binary is built from, with its checksum and licence; what the
/// manifests list beside it, for tests or the simulator, is not in it. The same commit gives the same file.
#[test]
fn a_bill_of_materials_names_what_the_binary_is_built_from() {
    if !here("the bill of materials", &["cargo-cyclonedx", "git", "rustc"]) {
        return;
    }
    let bills = [TempDir::new().expect("a directory"), TempDir::new().expect("a directory")].map(|directory| {
        let said = Command::new(root().join("deploy/package/sbom")).arg(directory.path()).output().expect("a shell");
        assert!(said.status.success(), "{}", text(&said));
        fs::read_to_string(String::from_utf8(said.stdout).expect("a path").trim()).expect("the bill")
    });
    assert!(bills[0] == bills[1], "two bills differ");
    let bill: serde_json::Value = serde_json::from_str(&bills[0]).expect("JSON");
    assert_eq!((bill["bomFormat"].as_str(), bill["specVersion"].as_str()), (Some("CycloneDX"), Some("1.5")));
    let mut named = BTreeSet::new();
    for part in bill["components"].as_array().expect("crates") {
        let name = format!("{} v{}", part["name"].as_str().unwrap(), part["version"].as_str().unwrap());
        assert_eq!(part["hashes"][0]["alg"], "SHA-256", "{name}");
        assert!(part["licenses"][0].is_object(), "{name}");
        named.insert(name);
    }
    let tree = ["tree", "--locked", "-p", "rationd", "--edges", "normal,build", "--prefix", "none", "--format", "{p}"];
    let built = says(Command::new(env!("CARGO")).current_dir(root()).args(tree));
    let built: BTreeSet<_> =
        built.lines().map(|line| line.split_whitespace().take(2).collect::<Vec<_>>().join(" ")).collect();
    let missing: Vec<_> = built.iter().filter(|name| !name.starts_with("rationd ") && !named.contains(*name)).collect();
    assert!(missing.is_empty(), "not in the bill: {missing:?}");
    for tests_only in ["tempfile", "proptest", "mlua"] {
        assert!(!named.iter().any(|name| name.starts_with(&format!("{tests_only} "))), "{tests_only} is in no binary");
    }
}
