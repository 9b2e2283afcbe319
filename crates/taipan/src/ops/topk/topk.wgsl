// x is [rows, n]; a workgroup finds the p.k largest elements of a row, from the largest down, a
// CHUNK at a time: it selects the smallest element of the chunk by the digits of its key, collects
// the chunk, and sorts it.
@group(0) @binding(0) var<storage, read> x: array<Elem>;
@group(0) @binding(1) var<storage, read_write> values: array<Elem>; // [rows, k]
@group(0) @binding(2) var<storage, read_write> indices: array<u32>; // [rows, k]

const DIGITS = 256u;

var<workgroup> counts: array<atomic<u32>, DIGITS>;
var<workgroup> digit: vec3<u32>; // a digit, how many keys have a greater one, how many have it
var<workgroup> taken: atomic<u32>;
var<workgroup> chunk: array<vec2<u32>, CHUNK>; // keys

// Greater for greater elements and, among equal ones, for smaller indices. No two are equal.
fn key_of(start: u32, j: u32) -> vec2<u32> {
    return vec2(order(f32(x[start + j])), p.n - j);
}

fn less(a: vec2<u32>, b: vec2<u32>) -> bool {
    return a.x < b.x || (a.x == b.x && a.y < b.y);
}

// A key such that exactly `count` keys below `limit` are not less: found digit by digit (radix
// select), until all keys with its prefix are among the `count`.
fn smallest(start: u32, local: u32, limit: vec2<u32>, count: u32) -> vec2<u32> {
    var prefix = vec2(0u);
    var mask = vec2(0u);
    var wanted = count; // of those with this prefix
    for (var i = 0u; i < 8u; i++) {
        let shift = 24u - 8u * (i % 4u);
        let place = select(vec2(0u, DIGITS - 1u), vec2(DIGITS - 1u, 0u), i < 4u) << vec2(shift);
        if i >= 4u && (p.n >> shift) == 0u {
            continue;
        }
        for (var d = local; d < DIGITS; d += WIDTH) {
            atomicStore(&counts[d], 0u);
        }
        workgroupBarrier();
        for (var j = local; j < p.n; j += WIDTH) {
            let key = key_of(start, j);
            if less(key, limit) && all((key & mask) == prefix) {
                let own = (key & place) >> vec2(shift);
                atomicAdd(&counts[own.x | own.y], 1u);
            }
        }
        workgroupBarrier();
        if local == 0u {
            var d = DIGITS - 1u;
            var above = 0u;
            for (; d > 0u; d--) {
                let here = atomicLoad(&counts[d]);
                if above + here >= wanted {
                    break;
                }
                above += here;
            }
            digit = vec3(d, above, atomicLoad(&counts[d]));
        }
        let chosen = workgroupUniformLoad(&digit);
        prefix |= vec2(chosen.x << shift) & place;
        mask |= place;
        wanted -= chosen.y;
        if chosen.z == wanted {
            break;
        }
    }
    return prefix;
}

// Sort the first `size` keys of the chunk, a power of two, from the greatest down (Batcher's
// bitonic sort).
fn sort(size: u32, local: u32) {
    for (var span = 2u; span <= size; span *= 2u) {
        for (var distance = span / 2u; distance > 0u; distance /= 2u) {
            workgroupBarrier();
            for (var i = local; i < size / 2u; i += WIDTH) {
                let a = 2u * i - i % distance;
                let b = a + distance;
                let keys = vec4(chunk[a], chunk[b]);
                if less(keys.xy, keys.zw) == ((a & span) == 0u) {
                    chunk[a] = keys.zw;
                    chunk[b] = keys.xy;
                }
            }
        }
    }
    workgroupBarrier();
}

fn line(row: u32, local: u32) {
    let start = row * p.n;
    var limit = vec2(0xffffffffu); // above every key
    for (var done = 0u; done < p.k; done += CHUNK) {
        let count = min(CHUNK, p.k - done);
        var size = 1u;
        while size < count {
            size *= 2u;
        }
        let least = smallest(start, local, limit, count);
        for (var i = local; i < size; i += WIDTH) {
            chunk[i] = vec2(0u);
        }
        if local == 0u {
            atomicStore(&taken, 0u);
        }
        workgroupBarrier();
        for (var j = local; j < p.n; j += WIDTH) {
            let key = key_of(start, j);
            if less(key, limit) && !less(key, least) {
                chunk[min(atomicAdd(&taken, 1u), CHUNK - 1u)] = key;
            }
        }
        sort(size, local);
        limit = chunk[count - 1u];
        for (var i = local; i < count; i += WIDTH) {
            let j = min(p.n - chunk[i].y, p.n - 1u);
            values[row * p.k + done + i] = x[start + j];
            indices[row * p.k + done + i] = j;
        }
        workgroupBarrier();
    }
}
