// y = x in another type, one element per invocation. Floats become integers as on the CPU:
// truncated and saturated, 0 for NaN.
@group(0) @binding(0) var<storage, read> x: array<From>;
@group(0) @binding(1) var<storage, read_write> y: array<To>;

fn element(i: u32) {
    if FLOAT_TO_INT == 1u {
        let value = f32(x[i]);
        let nan = (bitcast<u32>(value) & 0x7fffffffu) > 0x7f800000u;
        let whole = u32(clamp(value, 0.0, 4294967040.0));
        y[i] = To(select(select(whole, 0xffffffffu, value >= 4294967296.0), 0u, nan));
    } else {
        y[i] = To(f32(x[i]));
    }
}
