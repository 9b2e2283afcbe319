// A naive baseline: one invocation for each state of each channel scans sequentially over time. All
// states and their gradients are stored; everything else is a sum over these, computed by one
// invocation per result.
struct Sizes {
    b: u32,
    l: u32,
    d: u32,
    n: u32,
}
@group(0) @binding(0) var<uniform> p: Sizes;
@group(0) @binding(1) var<storage, read> u: array<f32>;            // [b, l, d]
@group(0) @binding(2) var<storage, read> delta: array<f32>;        // [b, l, d]
@group(0) @binding(3) var<storage, read> a_log: array<f32>;        // [d, n]
@group(0) @binding(4) var<storage, read> bs: array<f32>;           // [b, l, n]
@group(0) @binding(5) var<storage, read> cs: array<f32>;           // [b, l, n]
@group(0) @binding(6) var<storage, read> skip: array<f32>;         // [d]
@group(0) @binding(7) var<storage, read> delta_bias: array<f32>;   // [d]
@group(0) @binding(8) var<storage, read> z: array<f32>;            // [b, l, d]
@group(0) @binding(9) var<storage, read> dout: array<f32>;         // [b, l, d]
@group(0) @binding(10) var<storage, read_write> step: array<f32>;  // [b, l, d]: Δ
@group(0) @binding(11) var<storage, read_write> h: array<f32>;     // [b, l, d, n]
@group(0) @binding(12) var<storage, read_write> y: array<f32>;     // [b, l, d], before the gate
@group(0) @binding(13) var<storage, read_write> out: array<f32>;   // [b, l, d]
@group(0) @binding(14) var<storage, read_write> dy: array<f32>;    // [b, l, d]
@group(0) @binding(15) var<storage, read_write> g: array<f32>;     // [b, l, d, n]: dL/dh
@group(0) @binding(16) var<storage, read_write> du: array<f32>;
@group(0) @binding(17) var<storage, read_write> ddelta: array<f32>;
@group(0) @binding(18) var<storage, read_write> da_log: array<f32>;
@group(0) @binding(19) var<storage, read_write> db: array<f32>;
@group(0) @binding(20) var<storage, read_write> dc: array<f32>;
@group(0) @binding(21) var<storage, read_write> dskip: array<f32>;
@group(0) @binding(22) var<storage, read_write> ddelta_bias: array<f32>;
@group(0) @binding(23) var<storage, read_write> dz: array<f32>;

fn sigmoid(x: f32) -> f32 {
    return 1.0 / (1.0 + exp(-x));
}

// For each of [b, l, d].
@compute @workgroup_size(64)
fn step_sizes(@builtin(global_invocation_id) id: vec3<u32>) {
    if id.x < p.b * p.l * p.d {
        let x = delta[id.x] + delta_bias[id.x % p.d];
        step[id.x] = max(x, 0.0) + log(1.0 + exp(-abs(x)));
    }
}

// An index of [b, d, n].
struct Place {
    entry: u32,
    channel: u32,
    k: u32,
}

fn place_of(i: u32) -> Place {
    return Place(i / p.n / p.d, i / p.n % p.d, i % p.n);
}

// For each of [b, d, n].
@compute @workgroup_size(64)
fn states(@builtin(global_invocation_id) id: vec3<u32>) {
    if id.x < p.b * p.d * p.n {
        let at = place_of(id.x);
        let a = -exp(a_log[at.channel * p.n + at.k]);
        var state = 0.0;
        for (var t = 0u; t < p.l; t++) {
            let row = at.entry * p.l + t;
            let i = row * p.d + at.channel;
            let size = step[i];
            state = exp(size * a) * state + size * bs[row * p.n + at.k] * u[i];
            h[i * p.n + at.k] = state;
        }
    }
}

// For each of [b, l, d].
@compute @workgroup_size(64)
fn outputs(@builtin(global_invocation_id) id: vec3<u32>) {
    if id.x < p.b * p.l * p.d {
        var sum = skip[id.x % p.d] * u[id.x];
        for (var k = 0u; k < p.n; k++) {
            sum += cs[id.x / p.d * p.n + k] * h[id.x * p.n + k];
        }
        y[id.x] = sum;
        out[id.x] = sum * z[id.x] * sigmoid(z[id.x]);
    }
}

// For each of [b, l, d].
@compute @workgroup_size(64)
fn gate(@builtin(global_invocation_id) id: vec3<u32>) {
    if id.x < p.b * p.l * p.d {
        let s = sigmoid(z[id.x]);
        dy[id.x] = dout[id.x] * z[id.x] * s;
        dz[id.x] = dout[id.x] * y[id.x] * s * (1.0 + z[id.x] * (1.0 - s));
    }
}

// For each of [b, d, n].
@compute @workgroup_size(64)
fn reverse(@builtin(global_invocation_id) id: vec3<u32>) {
    if id.x < p.b * p.d * p.n {
        let at = place_of(id.x);
        let a = -exp(a_log[at.channel * p.n + at.k]);
        var carry = 0.0;
        for (var left = p.l; left > 0u; left--) {
            let row = at.entry * p.l + left - 1u;
            let i = row * p.d + at.channel;
            let grad = cs[row * p.n + at.k] * dy[i] + carry;
            g[i * p.n + at.k] = grad;
            carry = exp(step[i] * a) * grad;
        }
    }
}

// For each of [b, l, d].
@compute @workgroup_size(64)
fn input_grads(@builtin(global_invocation_id) id: vec3<u32>) {
    if id.x < p.b * p.l * p.d {
        var sum = 0.0;
        for (var k = 0u; k < p.n; k++) {
            sum += g[id.x * p.n + k] * bs[id.x / p.d * p.n + k];
        }
        du[id.x] = skip[id.x % p.d] * dy[id.x] + step[id.x] * sum;
    }
}

// For each of [b, l, d].
@compute @workgroup_size(64)
fn step_grads(@builtin(global_invocation_id) id: vec3<u32>) {
    if id.x < p.b * p.l * p.d {
        let first = id.x / p.d % p.l == 0u;
        let size = step[id.x];
        var sum = 0.0;
        for (var k = 0u; k < p.n; k++) {
            let a = -exp(a_log[id.x % p.d * p.n + k]);
            var before = 0.0;
            if !first {
                before = h[(id.x - p.d) * p.n + k];
            }
            let derivative = a * exp(size * a) * before + u[id.x] * bs[id.x / p.d * p.n + k];
            sum += g[id.x * p.n + k] * derivative;
        }
        ddelta[id.x] = sum * (1.0 - exp(-size));
    }
}

// For each of [b, l, n].
@compute @workgroup_size(64)
fn row_grads(@builtin(global_invocation_id) id: vec3<u32>) {
    if id.x < p.b * p.l * p.n {
        let row = id.x / p.n;
        var sum_b = 0.0;
        var sum_c = 0.0;
        for (var channel = 0u; channel < p.d; channel++) {
            let i = row * p.d + channel;
            sum_b += g[i * p.n + id.x % p.n] * step[i] * u[i];
            sum_c += dy[i] * h[i * p.n + id.x % p.n];
        }
        db[id.x] = sum_b;
        dc[id.x] = sum_c;
    }
}

// For each of [d, n].
@compute @workgroup_size(64)
fn rate_grads(@builtin(global_invocation_id) id: vec3<u32>) {
    if id.x < p.d * p.n {
        let a = -exp(a_log[id.x]);
        var sum = 0.0;
        for (var row = 0u; row < p.b * p.l; row++) {
            if row % p.l != 0u {
                let size = step[row * p.d + id.x / p.n];
                let i = row * p.d * p.n + id.x;
                sum += g[i] * size * exp(size * a) * h[i - p.d * p.n];
            }
        }
        da_log[id.x] = sum * a;
    }
}

// For each of [d].
@compute @workgroup_size(64)
fn channel_grads(@builtin(global_invocation_id) id: vec3<u32>) {
    if id.x < p.d {
        var sum_skip = 0.0;
        var sum_bias = 0.0;
        for (var row = 0u; row < p.b * p.l; row++) {
            sum_skip += dy[row * p.d + id.x] * u[row * p.d + id.x];
            sum_bias += ddelta[row * p.d + id.x];
        }
        dskip[id.x] = sum_skip;
        ddelta_bias[id.x] = sum_bias;
    }
}
