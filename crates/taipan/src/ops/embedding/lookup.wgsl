// y = table[outer, ids], [outer, count, d]: an invocation copies one element. Of the table's rows,
// [outer, v], p.rows from p.first on are bound; others are copied by other launches. Where an id is
// not below v, y is NaN.
@group(0) @binding(0) var<storage, read> table: array<Elem>;
@group(0) @binding(1) var<storage, read> ids: array<u32>;
@group(0) @binding(2) var<storage, read_write> y: array<Elem>;
@group(0) @binding(3) var<storage, read_write> index_errors: array<atomic<u32>>;

fn element(i: u32) {
    let outer = i / p.d / p.count;
    let id = ids[i / p.d % p.count];
    let column = i % p.d;
    if id >= p.v {
        y[i] = Elem(p.nan);
        if column == 0u {
            report_index_error(id, p.v);
        }
        return;
    }
    let row = outer * p.v + id - p.first; // beyond the rows if it is below p.first
    if row < p.rows {
        y[i] = table[row * p.d + column];
    }
}
