// db and dc of some chunks: the sums of the partial sums of all teams, in blocks of 64 so that the
// error does not grow with their number. One element per invocation.
// [partial_chunks, n, teams, 2, STEPS]
@group(0) @binding(0) var<storage, read> partials: array<f32>;
@group(0) @binding(1) var<storage, read_write> db: array<Elem>;  // [b, l, n]
@group(0) @binding(2) var<storage, read_write> dc: array<Elem>;  // [b, l, n]

fn element(i: u32) {
    let number = p.first_chunk + i / (2u * STEPS * p.n);
    let j = i / (2u * STEPS) % p.n;
    let t = number % p.chunks * STEPS + i % STEPS;
    if t >= p.l {
        return;
    }
    let own = i / (2u * STEPS) * p.teams * 2u * STEPS + i % (2u * STEPS);
    var sum = 0.0;
    for (var first = 0u; first < p.teams; first += 64u) {
        var block = 0.0;
        for (var team = first; team < min(first + 64u, p.teams); team++) {
            block += partials[own + team * 2u * STEPS];
        }
        sum += block;
    }
    let to = (number / p.chunks * p.l + t) * p.n + j;
    if i / STEPS % 2u == 0u {
        db[to] = Elem(sum);
    } else {
        dc[to] = Elem(sum);
    }
}
