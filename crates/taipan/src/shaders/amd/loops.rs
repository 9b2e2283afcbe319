//! The loops of a kernel in AMD's machine code.

use std::collections::HashMap;
use std::ops::Range;

/// The number of instructions of a loop's body, by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    /// All instructions of the vector units, which the others but `shared` and `memory` are part
    /// of.
    pub(super) vector: usize,
    pub(super) fma: usize,
    /// exp, log, reciprocal and root: a quarter of the rate of others.
    pub(super) special: usize,
    /// Reads and writes of workgroup memory.
    pub(super) shared: usize,
    /// Reads and writes of buffers.
    pub(super) memory: usize,
}

/// The loops that contain no other loop, in the order of the code.
pub(super) fn innermost(assembly: &str) -> Vec<Counts> {
    let mut instructions = Vec::new();
    let (mut starts, mut loops) = (HashMap::new(), Vec::<Range<usize>>::new());
    for line in assembly.lines() {
        if let Some(label) = line.strip_suffix(':') {
            starts.insert(label, instructions.len());
        } else if let Some(instruction) = line.strip_prefix('\t') {
            let mut words = instruction.split_whitespace();
            let name = words.next().unwrap_or_default();
            instructions.push(name);
            if name.starts_with("s_branch") || name.starts_with("s_cbranch") {
                // A jump to a label that came before: from there to here is a loop.
                let start = words.next().and_then(|label| starts.get(label));
                loops.extend(start.map(|&start| start..instructions.len()));
            }
        }
    }
    let inside =
        |a: &Range<usize>, b: &Range<usize>| a != b && b.start <= a.start && a.end <= b.end;
    let is_innermost = |range: &&Range<usize>| !loops.iter().any(|other| inside(other, range));
    loops.iter().filter(is_innermost).map(|range| count(&instructions[range.clone()])).collect()
}

fn count(instructions: &[&str]) -> Counts {
    let starting = |prefixes: &[&str]| {
        let matches = |name: &&&str| prefixes.iter().any(|prefix| name.starts_with(prefix));
        instructions.iter().filter(matches).count()
    };
    Counts {
        vector: starting(&["v_"]),
        fma: starting(&["v_fma", "v_fmac", "v_pk_fma", "v_dot2"]),
        special: starting(&["v_exp_", "v_log_", "v_rcp_", "v_rsq_", "v_sqrt_"]),
        shared: starting(&["ds_"]),
        memory: starting(&["buffer_", "global_"]),
    }
}

#[test]
fn loops_are_found_in_machine_code() {
    let assembly = "BB0:\n\ts_mov_b32 s0, s3 ; be800303\nBB1:\n\tv_add_f32 v0, v1, v2\nBB2:\n\
        \tv_fmac_f32 v0, v1, v2\n\tds_read_b128 v[0:3], v4\n\ts_cbranch_scc1 BB2 ; bf85\n\
        \tbuffer_store_dword v0, v1\n\ts_branch BB1\nBB3:\n\tv_exp_f32 v0, v1\n\ts_endpgm\n";
    let inner = Counts { vector: 1, fma: 1, shared: 1, ..Counts::default() };
    assert_eq!(innermost(assembly), [inner]);
}
