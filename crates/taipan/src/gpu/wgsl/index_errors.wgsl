// Report an index that is not below its limit, which is not 0. The kernel continues without using
// the index.
fn report_index_error(found: u32, limit: u32) {
    atomicMax(&index_errors[2u * p.slot], found);
    atomicMax(&index_errors[2u * p.slot + 1u], limit);
}
