// Write down that an index is not below its limit, which is not 0. The kernel goes on, and does not use
// it.
fn complain(found: u32, limit: u32) {
    atomicMax(&complaints[2u * p.slot], found);
    atomicMax(&complaints[2u * p.slot + 1u], limit);
}
