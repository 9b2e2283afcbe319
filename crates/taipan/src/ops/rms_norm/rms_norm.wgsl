// y = s·rstd ⊙ weight with rstd = 1/√(mean(s²) + eps); s is x, x + other or x ⊙ silu(other), or y is
// multiplied by silu(other). A workgroup of WIDTH invocations computes a row of y and s, [rows, n],
// and an element of rstd, [rows]; weight is [groups, n].
@group(0) @binding(0) var<storage, read> x: array<Elem>;
@group(0) @binding(1) var<storage, read> weight: array<Elem>;
@group(0) @binding(2) var<storage, read> other: array<Stream>;
@group(0) @binding(3) var<storage, read_write> y: array<Elem>;
@group(0) @binding(4) var<storage, read_write> s: array<Stream>;
@group(0) @binding(5) var<storage, read_write> rstd: array<f32>;

// 2⁻¹⁰⁰ and 2¹²⁶: between these bounds no significant square has overflowed or underflowed.
const LOW = 0x0d800000u;
const HIGH = 0x7e800000u;

fn sum_at(i: u32) -> f32 {
    let here = f32(x[i]);
    if WITH == RESIDUAL {
        return here + f32(other[i]);
    }
    if WITH == GATE_FIRST {
        return here * value(f32(other[i]));
    }
    return here;
}

fn inverse_root(x: f32) -> f32 {
    return m_divide(1.0, m_sqrt(x));
}

// rstd from the squares of s/m, with m the larger of max|s| and √eps; `top` has the bits of m.
fn inverse_root_scaled(start: u32, local: u32, top: u32) -> f32 {
    let m = bitcast<f32>(top);
    var all = Partial();
    for (var j = local; j < p.n; j += WIDTH) {
        let here = sum_at(start + j) / m;
        all.squares = fma(here, here, all.squares);
    }
    all = workgroup_join(all, local);
    let root = p.root_eps / m;
    let mean = all.squares / f32(p.n) + root * root;
    // Only zeros, an infinity, or NaN: the limits are ∞, 0 and NaN.
    var bits = bitcast<u32>(inverse_root(mean) / m);
    bits = select(bits, M_INFINITY, top == 0u);
    bits = select(bits, 0u, top == M_INFINITY);
    return m_keep_nan(m, bitcast<f32>(bits));
}

fn line(row: u32, local: u32) {
    let start = row * p.n;
    var all = Partial(0.0, bitcast<u32>(p.root_eps));
    for (var j = local; j < p.n; j += WIDTH) {
        let here = sum_at(start + j);
        all.squares = fma(here, here, all.squares);
        // The bits of magnitudes have the order of their values, NaN above all.
        all.top = max(all.top, bitcast<u32>(here) & ~M_SIGN);
    }
    all = workgroup_join(all, local);
    let mean = all.squares / f32(p.n) + p.eps;
    var inverse = inverse_root(mean);
    if bitcast<u32>(mean) <= LOW || bitcast<u32>(mean) >= HIGH {
        inverse = inverse_root_scaled(start, local, all.top);
    }
    if local == 0u {
        rstd[row] = inverse;
    }
    for (var j = local; j < p.n; j += WIDTH) {
        let here = sum_at(start + j);
        if WITH == RESIDUAL {
            s[start + j] = Stream(here);
        }
        var out = here * inverse;
        if WEIGHTED == 1u {
            out *= f32(weight[row % p.groups * p.n + j]);
        }
        if WITH == NORM_FIRST {
            out *= value(f32(other[start + j]));
        }
        y[start + j] = Elem(out);
    }
}
