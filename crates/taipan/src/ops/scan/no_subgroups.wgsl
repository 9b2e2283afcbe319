// Without subgroups: each invocation reads the elements of b and c when it needs them, and writes
// its own partial sums.
struct BcRows {
    at: u32,
}

fn load_bc(at: u32, local: u32) -> BcRows {
    return BcRows(at);
}

// Element i of the STEPS elements of b, followed by those of c.
fn bc_at(rows: ptr<function, BcRows>, i: u32) -> f32 {
    return prepared[(*rows).at + i];
}

// Every SHARE-th element of db and dc, from local % SHARE on.
alias BcGrads = array<f32, 2u * STEPS / SHARE>;

// The sum of x over the invocations that share a partial sum: element i of db and dc, kept by the
// invocation that stores it.
fn sum_bc_grads(sums: ptr<function, BcGrads>, i: u32, x: f32, local: u32) {
    (*sums)[i] = x;
}
