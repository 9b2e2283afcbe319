// x and y are [rows, n], y a copy of x, and tokens [rows, m]; an invocation penalizes the logit of one
// token. Several of one token write the same value.
@group(0) @binding(0) var<storage, read> x: array<Elem>;
@group(0) @binding(1) var<storage, read> tokens: array<u32>;
@group(0) @binding(2) var<storage, read_write> y: array<Elem>;

fn element(i: u32) {
    let token = tokens[i];
    if token < p.n {
        let at = i / p.m * p.n + token;
        let here = f32(x[at]);
        y[at] = Elem(here * select(p.penalty, p.inverse, here > 0.0));
    }
}
