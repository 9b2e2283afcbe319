// dx = scale·dinput + d·dy, element by element; scale is [b, l, h], d [h].
@group(0) @binding(0) var<storage, read> dinput: array<f32>;
@group(0) @binding(1) var<storage, read> dy: array<Elem>;
@group(0) @binding(2) var<storage, read> scale: array<f32>;
@group(0) @binding(3) var<storage, read> d: array<f32>;
@group(0) @binding(4) var<storage, read_write> dx: array<Elem>;

fn element(i: u32) {
    let head = i / p.channels % p.heads;
    let step = i / p.channels / p.heads / p.ranks;
    var sum = dinput[i];
    if SCALE == 1u {
        sum *= scale[step * p.heads + head];
    }
    if SKIP == 1u {
        sum = fma(d[head], f32(dy[i]), sum);
    }
    dx[i] = Elem(sum);
}
