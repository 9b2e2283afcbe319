// dx = scale·dinput + own_scale·dinput_own + d·dy, element by element; the scales are [b, l, h],
// d is [h].
@group(0) @binding(0) var<storage, read> dinput: array<f32>;
@group(0) @binding(1) var<storage, read> dy: array<Elem>;
@group(0) @binding(2) var<storage, read> scale: array<f32>;
@group(0) @binding(3) var<storage, read> d: array<f32>;
@group(0) @binding(4) var<storage, read> own_scale: array<f32>;
@group(0) @binding(5) var<storage, read> dinput_own: array<f32>;
@group(0) @binding(6) var<storage, read_write> dx: array<Elem>;

fn element(i: u32) {
    let head = i / p.channels % p.heads;
    let step = i / p.channels / p.heads / p.ranks;
    var sum = dinput[i];
    if SCALE == 1u {
        sum *= scale[step * p.heads + head];
    }
    if OWN_SCALE == 1u {
        sum = fma(own_scale[step * p.heads + head], dinput_own[i], sum);
    }
    if SKIP == 1u {
        sum = fma(d[head], f32(dy[i]), sum);
    }
    dx[i] = Elem(sum);
}
