// Without subgroups: each invocation reads rows as it needs them, and leaves parts of its own.
struct Rows {
    at: u32,
}

fn rows_from(at: u32, local: u32) -> Rows {
    return Rows(at);
}

// Element i of b and c, one behind the other.
fn row_at(rows: ptr<function, Rows>, i: u32) -> f32 {
    return packed[(*rows).at + i];
}

// Elements of db and dc at every SHARE steps, from local % SHARE on.
alias Sums = array<f32, 2u * STEPS / SHARE>;

// The sum of x over the invocations that share a part: element i of db and dc, for the one that stores it.
fn join(sums: ptr<function, Sums>, i: u32, x: f32, local: u32) {
    (*sums)[i] = x;
}
