// With ŝ = s·rstd and dŝ = dy ⊙ weight: ds = rstd·(dŝ − ŝ·mean(dŝ ⊙ ŝ)). With a residual, plus
// other, the upstream of s; also as second if p.split. With a gate, other, s is x, ds is dx and
// second is dgate. All are [rows, n] except weight, [groups, n], and rstd, [rows]; a workgroup of
// WIDTH invocations computes a row.
@group(0) @binding(0) var<storage, read> dy: array<Elem>;
@group(0) @binding(1) var<storage, read> s: array<Stream>;
@group(0) @binding(2) var<storage, read> weight: array<Elem>;
@group(0) @binding(3) var<storage, read> rstd: array<f32>;
@group(0) @binding(4) var<storage, read> other: array<Stream>;
@group(0) @binding(5) var<storage, read_write> ds: array<Stream>;
@group(0) @binding(6) var<storage, read_write> second: array<Elem>;

fn weight_at(row: u32, j: u32) -> f32 {
    if WEIGHTED == 1u {
        return f32(weight[row % p.groups * p.n + j]);
    }
    return 1.0;
}

// silu of the gate
fn open_at(i: u32) -> f32 {
    if WITH == GATE_FIRST || WITH == NORM_FIRST {
        return value(f32(other[i]));
    }
    return 1.0;
}

fn line(row: u32, local: u32) {
    let start = row * p.n;
    let scale = rstd[row];
    var dot = 0.0;
    for (var j = local; j < p.n; j += WIDTH) {
        let i = start + j;
        // One factor for either order: it belongs to s or to dy.
        let product = f32(dy[i]) * weight_at(row, j) * open_at(i);
        dot = fma(product, f32(s[i]) * scale, dot);
    }
    let mean = workgroup_join(dot, local) / f32(p.n);
    for (var j = local; j < p.n; j += WIDTH) {
        let i = start + j;
        let open = open_at(i);
        var dunit = f32(dy[i]) * weight_at(row, j);
        var unit = f32(s[i]) * scale;
        if WITH == GATE_FIRST {
            unit *= open;
        }
        if WITH == NORM_FIRST {
            second[i] = Elem(gradient_at(f32(other[i]), dunit * unit));
            dunit *= open;
        }
        var here = scale * fma(-unit, mean, dunit);
        if WITH == GATE_FIRST {
            second[i] = Elem(gradient_at(f32(other[i]), here * f32(s[i])));
            here *= open;
        }
        if WITH == RESIDUAL {
            here += f32(other[i]);
            if p.split == 1u {
                second[i] = Elem(here);
            }
        }
        ds[i] = Stream(here);
    }
}
