//! `scripts/test` on other systems: with a PATH on which the system's tools, cargo and rustc are
//! stand-ins that log how they are called.
#![cfg(unix)]

#[path = "../../taipan-lm/tests/common/empty.rs"]
mod empty;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;

const MESA: &str = "usr/share/vulkan/icd.d/lvp_icd.x86_64.json";
const CHROMIUM: &str = "usr/lib/chromium/vk_swiftshader_icd.json";
const OPEN_MPI: &str = "usr/bin/mpirun.openmpi";
const PLAYWRIGHT: &str =
    "home/.cache/ms-playwright/chromium-1/chrome-linux/vk_swiftshader_icd.json";

/// A machine, in a directory of its own.
struct System(PathBuf);

/// How a run ended: its exit code, its last line, its standard error, and the log.
#[derive(Debug)]
struct Outcome {
    code: Option<i32>,
    last: String,
    stderr: String,
    log: String,
}

impl System {
    /// Linux, with a C linker and Rust, for a user who is root; without a package manager.
    fn new(test: &str) -> System {
        let system = System(empty::directory("test-command", test));
        let tools = ["bash", "cat", "cut", "dirname", "env", "find", "grep", "head", "mkdir"];
        for tool in tools.into_iter().chain(["rm", "sed", "sort", "true"]) {
            let found = ["/bin", "/usr/bin"].map(|bin| PathBuf::from(bin).join(tool));
            let found = found.iter().find(|path| path.exists()).expect(tool);
            fs::create_dir_all(system.0.join("bin")).unwrap();
            std::os::unix::fs::symlink(found, system.0.join("bin").join(tool)).unwrap();
        }
        system.file("lib/libcore-1.rlib");
        system.tool("uname", "case $1 in -m) echo x86_64 ;; *) echo Linux ;; esac");
        system.tool("id", "echo 0");
        system.tool("cc", "echo /usr/lib/crt1.o");
        system.disk(90_000, 1_000);
        system.tool("cargo", "echo \"$TAIPAN_ADAPTER cargo $*\" >>$ROOT/log");
        system.tool(
            "rustc",
            "case $* in --version) echo rustc 1.95.0 ;; -vV) echo host: x86_64-unknown-linux-gnu ;; \
             *libdir*) echo $ROOT/lib ;; esac",
        );
        for example in ["interop", "custom_op", "classifier", "ssm_block"] {
            system.script(&format!("target/debug/examples/{example}"), "exit 0");
        }
        system
    }

    fn file(&self, path: &str) {
        let path = self.0.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "").unwrap();
    }

    fn script(&self, path: &str, code: &str) {
        self.file(path);
        let path = self.0.join(path);
        fs::write(&path, format!("#!/usr/bin/env bash\n{code}\n")).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    fn tool(&self, name: &str, code: &str) {
        self.script(&format!("bin/{name}"), code);
    }

    /// A package manager that installs what its packages are said to have.
    fn manager(&self, name: &str, packages: &[(&str, &str)]) {
        let mut code = format!(
            "echo {name} $* >>$ROOT/log\ncase \" $* \" in *install*|*-S*) ;; *) exit ;; esac\n"
        );
        for (package, file) in packages {
            let file = format!("$ROOT/{file}");
            let make = format!("mkdir -p $(dirname {file}); : >{file}");
            code += &format!("case \" $* \" in *' {package} '*) {make} ;; esac\n");
        }
        self.tool(name, &code);
    }

    fn debian(self) -> System {
        let drivers = [("mesa-vulkan-drivers", MESA), ("chromium", CHROMIUM)];
        self.manager("apt-get", &[&drivers[..], &[("openmpi-bin", OPEN_MPI)]].concat());
        self.tool("apt-cache", "echo '  Candidate: 140.0-1~deb12u1'");
        self
    }

    /// So many megabytes are free, and so many taken by what was compiled before.
    fn disk(&self, free: u32, used: u32) {
        let [free, used] = [free, used].map(|megabytes| megabytes * 1024);
        self.tool("df", &format!("echo; echo disk 0 0 {free} 0% /"));
        self.tool("du", &format!("echo {used} target"));
    }

    fn without_root(self) -> System {
        self.tool("id", "echo 1000");
        self.tool("sudo", "exit 1");
        self
    }

    fn run(&self, arguments: &[&str], variables: &[(&str, &str)]) -> Outcome {
        let script = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../scripts/test");
        let _ = fs::remove_file(self.0.join("log"));
        let mut command = Command::new("bash");
        command.arg(script).args(arguments).env_clear();
        command.env("PATH", self.0.join("bin")).env("HOME", self.0.join("home"));
        command.env("ROOT", &self.0).env("TAIPAN_TEST_ROOT", self.0.join("").as_os_str());
        command.env("CARGO_TARGET_DIR", self.0.join("target")).envs(variables.iter().copied());
        let output = command.output().unwrap();
        let [stdout, stderr] =
            [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
        let last = stdout.lines().last().unwrap_or_default().to_owned();
        let log = fs::read_to_string(self.0.join("log")).unwrap_or_default();
        Outcome { code: output.status.code(), last, stderr, log }
    }
}

impl Outcome {
    #[track_caller]
    fn passed(&self) -> &Outcome {
        assert_eq!((self.code, self.stderr.as_str()), (Some(0), ""), "{self:?}");
        assert!(self.last.contains("steps passed, "), "{self:?}");
        self
    }

    /// It failed with this line, before anything was tested.
    #[track_caller]
    fn failed(&self, line: &str) {
        let stderr = format!("scripts/test: {line}\n");
        assert_eq!((self.code, &self.stderr), (Some(1), &stderr), "{self:?}");
        assert_eq!(self.last, "scripts/test: FAILED at setup");
        assert!(!self.log.contains("cargo test"), "{self:?}");
    }

    #[track_caller]
    fn has(&self, call: &str) -> &Outcome {
        assert!(self.log.contains(call), "{call}: {self:?}");
        self
    }
}

#[test]
fn debian_installs_both_drivers() {
    let system = System::new("debian").debian();
    let first = system.run(&["--fast"], &[]);
    first.passed().has("apt-get -q update").has("mesa-vulkan-drivers libvulkan1");
    first.has("install -y --no-install-recommends chromium");
    first.has("llvmpipe cargo test --locked --workspace --tests");
    first.has("SwiftShader cargo test --locked --workspace --test ops");
    first.has("install -y --no-install-recommends libopenmpi-dev openmpi-bin libclang-dev");
    first.has("cargo test --locked --workspace --features taipan-cli/mpi --test mpi");
    assert!(!first.last.contains("swiftshader"), "{first:?}");
    let second = system.run(&["--fast"], &[]);
    assert!(!second.passed().log.contains("apt-get"), "{second:?}");
    let system = System::new("adapter").debian();
    system.file(OPEN_MPI);
    let adapter = system.run(&["--fast"], &[("TAIPAN_ADAPTER", "Radeon")]);
    adapter.passed().has("Radeon cargo test --locked --workspace --tests");
    assert!(!adapter.log.contains("apt-get"), "{adapter:?}");
}

#[test]
fn ubuntu_has_no_package_of_chromium() {
    for candidate in ["", "echo '  Candidate: (none)'", "echo '  Candidate: 2:1snap1-0ubuntu2'"] {
        let system = System::new("ubuntu").debian();
        system.tool("apt-cache", candidate);
        let outcome = system.run(&["--fast"], &[]);
        outcome.passed().has("mesa-vulkan-drivers");
        let why = "swiftshader (not found; to get it: npx playwright install chromium";
        assert!(outcome.last.contains(why), "{outcome:?}");
        assert!(!outcome.log.contains("SwiftShader"), "{outcome:?}");
        let line = "npx playwright install chromium, or install Chrome";
        let ci = System(system.0.clone()).run(&["--fast"], &[("CI", "true")]);
        ci.failed(&format!("the GPU driver SwiftShader is missing; to get it: {line}"));
        system.file(PLAYWRIGHT);
        system.run(&["--fast"], &[]).passed().has("SwiftShader cargo test");
    }
}

#[test]
fn fedora_and_arch_have_their_own_names() {
    let system = System::new("fedora");
    let fedora = "usr/lib64/chromium-browser/vk_swiftshader_icd.json";
    system.manager("dnf", &[("mesa-vulkan-drivers", MESA), ("chromium", fedora)]);
    let outcome = system.run(&["--fast"], &[]);
    outcome.passed().has("dnf install -y mesa-vulkan-drivers vulkan-loader");
    outcome.has("SwiftShader cargo test");
    let system = System::new("arch");
    let mesa = "usr/share/vulkan/icd.d/lvp_icd.json";
    system.manager("pacman", &[("vulkan-swrast", mesa), ("chromium", CHROMIUM)]);
    let outcome = system.run(&["--fast"], &[]);
    outcome.passed().has("pacman -S --needed --noconfirm vulkan-swrast vulkan-icd-loader");
    let why = "mpi (not found; to get it: install Open MPI and libclang)";
    assert!(outcome.last.contains(why), "{outcome:?}");
    assert!(!outcome.log.contains("taipan-cli/mpi"), "{outcome:?}");
    outcome.has("SwiftShader cargo test");
}

#[test]
fn without_root_a_line_says_what_to_do() {
    let system = System::new("user").debian().without_root();
    let install = "as root, apt-get install";
    let packages = format!("{install} mesa-vulkan-drivers libvulkan1");
    system
        .run(&[], &[])
        .failed(&format!("the GPU driver llvmpipe is missing; to get it: {packages}"));
    system.file(MESA);
    let outcome = system.run(&["--fast"], &[]);
    let why = format!("swiftshader (not found; to get it: {install} chromium)");
    assert!(outcome.passed().last.contains(&why), "{outcome:?}");
    assert!(!outcome.log.contains("apt-get"), "{outcome:?}");
    system.tool("cc", "echo crt1.o");
    let packages = format!("{install} gcc libc6-dev");
    system.run(&[], &[]).failed(&format!("the C linker cc is missing; to get it: {packages}"));
    system.tool("sudo", "shift; exec \"$@\"");
    system.tool("cc", "echo /usr/lib/crt1.o");
    system.run(&["--fast"], &[]).passed().has("install -y --no-install-recommends chromium");
}

#[test]
fn other_systems_say_what_is_missing() {
    let system = System::new("other");
    let mesa = "install Mesa's Vulkan drivers and the Vulkan loader";
    system.run(&[], &[]).failed(&format!("the GPU driver llvmpipe is missing; to get it: {mesa}"));
    let outcome = system.run(&["--fast"], &[("TAIPAN_TEST_GPU", "skip")]);
    assert!(outcome.passed().last.contains("swiftshader (TAIPAN_TEST_GPU=skip)"), "{outcome:?}");
    let system = System::new("macos").without_root();
    system.tool("uname", "echo Darwin");
    let outcome = system.run(&["--fast"], &[]);
    let why = "swiftshader (tests use the default adapter)";
    assert!(outcome.passed().last.contains(why), "{outcome:?}");
    fs::remove_file(system.0.join("bin/cc")).unwrap();
    system.run(&[], &[]).failed("the C linker cc is missing; to get it: xcode-select --install");
    fs::remove_file(system.0.join("bin/cargo")).unwrap();
    system.run(&[], &[]).failed("cargo is missing; to get it: see https://rustup.rs");
}

#[test]
fn a_full_disk_is_noticed_before_it_is_full() {
    let system = System::new("disk").debian();
    let kept = |system: &System| system.0.join("target/debug/examples/interop").exists();
    system.disk(300, 4_000);
    let target = system.0.join("target");
    let missing = format!("space for 5000 MB in {}, which has 4300,", target.display());
    let line = format!("{missing} is missing; to get it: set CARGO_TARGET_DIR");
    system.run(&["--fast"], &[]).failed(&line);
    assert!(kept(&system));
    system.run(&["--fast"], &[("CI", "true")]).failed(&line);
    assert!(!kept(&system));
    let system = System::new("large-cache").debian();
    system.disk(90_000, 17_000);
    system.run(&["--fast"], &[]).passed();
    assert!(kept(&system));
    system.run(&["--fast"], &[("CI", "true")]);
    assert!(!kept(&system));
}

#[test]
fn quick_needs_no_driver() {
    let system = System::new("quick").without_root();
    let outcome = system.run(&["--quick"], &[]);
    outcome.passed().has("cargo clippy").has("cargo test --locked --workspace --lib");
    assert!(outcome.last.contains("3 steps passed"), "{outcome:?}");
    system.tool("cargo", "case \"$*\" in *all-targets*) exit 3 ;; esac");
    let outcome = system.run(&["--quick"], &[]);
    let found = (outcome.code, outcome.last.as_str());
    assert_eq!(found, (Some(3), "scripts/test: FAILED at clippy"), "{outcome:?}");
    assert_eq!(system.run(&["--what"], &[]).code, Some(2));
    assert_eq!(system.run(&["--help"], &[]).code, Some(0));
}
