// For groups.wgsl: a workgroup calls line(i, local) for each i < p.lines.
fn group_main(i: u32, local: u32) {
    if i < p.lines {
        line(i, local);
    }
}
