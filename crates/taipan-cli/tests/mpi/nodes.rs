//! Several machines: here namespaces of one, each with a host name of its own, so that the library
//! starts a daemon on each and sends by TCP between them.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};

use crate::faults::{ended, kill, processes, spawn, wait_until};
use crate::harness::{Harness, succeed};
use crate::{Library, SMALL, harness, launcher, library, started};

/// Stands in for ssh: runs a command in a namespace with the name of the host.
const AGENT: &str = r#"#!/bin/sh
while case $1 in -*) true ;; *) false ;; esac; do shift; done
exec NAMESPACE sh -c 'hostname "$1" && shift && exec sh -c "$*"' sh "$@"
"#;

/// The command for a namespace of host names: as root, or as root of a user namespace.
fn namespace() -> Option<&'static str> {
    let works = |unshare: &&str| {
        let mut command = Command::new("sh");
        command.args(["-c", &format!("{unshare} hostname node1")]).stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    };
    ["unshare --uts", "unshare --map-root-user --uts"].into_iter().find(works)
}

/// The launcher for two nodes of two processes each; none where there cannot be any.
fn two_nodes(harness: &Harness) -> Option<Command> {
    let Some(namespace) = namespace() else {
        assert!(std::env::var_os("CI").is_none(), "no namespaces of host names");
        eprintln!("skipped: this user may have no namespaces of host names");
        return None;
    };
    harness.write("agent", AGENT.replace("NAMESPACE", namespace));
    let agent = harness.path("agent");
    fs::set_permissions(&agent, Permissions::from_mode(0o755)).unwrap();
    let mut job = launcher();
    match library() {
        Library::OpenMpi => {
            harness.write("hosts", "node1 slots=2\nnode2 slots=2\n");
            job.args(["--mca", "plm_rsh_agent"]).arg(agent).args(["--hostfile", "hosts"]);
            job.args(["--mca", "oob_tcp_if_include", "lo", "--mca", "btl_tcp_if_include", "lo"]);
        }
        Library::Mpich => {
            harness.write("hosts", "node1:2\nnode2:2\n");
            job.args(["-launcher", "ssh", "-launcher-exec"]).arg(agent);
            job.args(["-iface", "lo", "-f", "hosts"]);
        }
    }
    Some(job)
}

#[test]
fn leave_the_bytes_of_one_process() {
    let harness = harness("nodes");
    let Some(job) = two_nodes(&harness) else { return };
    succeed(harness.train(&SMALL).args(["--out", "alone"]));
    let mut command = harness.train(&SMALL);
    succeed(&mut started(job, 4, command.args(["--out", "on-nodes"])));
    harness.assert_same("alone", "on-nodes", 6);
}

/// The last process is the second one of the second node.
#[test]
fn a_rank_of_another_node_that_fails_is_named_with_its_node() {
    let harness = harness("node-fails");
    let Some(job) = two_nodes(&harness) else { return };
    let command = harness.train(&["--grad-accum", "4"]);
    let mut job = started(job, 3, &command);
    job.args([":", "-n", "1"]).arg(command.get_program()).args(command.get_args());
    job.args(["--seed", "1"]);
    let (code, stderr) = ended(spawn(job));
    assert_eq!(code, Some(1), "{stderr}");
    let errors: Vec<_> = stderr.lines().filter(|line| line.starts_with("error: ")).collect();
    let expected = "rank 3 on node2: --seed is 1, but 0 in rank 0 on node1";
    assert!(errors.len() == 1 && errors[0].contains(expected), "{stderr}");
}

#[test]
fn a_killed_rank_of_another_node_ends_the_job() {
    let harness = harness("node-killed");
    let Some(job) = two_nodes(&harness) else { return };
    let mut command = harness.train(&["--steps", "1000000", "--grad-accum", "4"]);
    command.args(["--log-interval", "1", "--out", "on-killed-node"]);
    let mut child = spawn(started(job, 4, &command));
    let rows =
        || fs::read_to_string(harness.path("on-killed-node/metrics.jsonl")).unwrap_or_default();
    wait_until(&mut child, || rows().lines().count() > 5);
    let victims = processes("on-killed-node");
    assert_eq!(victims.len(), 4);
    kill("-KILL", victims[2].1);
    let (code, stderr) = ended(child);
    assert_ne!(code, Some(0), "{stderr}");
    // MPICH's launcher does not say what has happened on another node.
    let is_named = stderr.contains("node2") && stderr.contains("signal 9");
    assert!(is_named || library() == Library::Mpich, "{stderr}");
    assert!(processes("on-killed-node").is_empty(), "all have ended");
}
