// Threefry-2x32: 64 random bits from a key and a counter, those of cpu/threefry.rs.
const T_ROTATIONS = array<vec4<u32>, 2>(vec4(13u, 15u, 26u, 6u), vec4(17u, 29u, 16u, 24u));

// 20 rounds.
fn threefry(key: vec2<u32>, counter: vec2<u32>) -> vec2<u32> {
    return t_rounds_of_four(5u, key, counter);
}

// 13 rounds.
fn threefry_13(key: vec2<u32>, counter: vec2<u32>) -> vec2<u32> {
    return t_round(t_rounds_of_four(3u, key, counter), T_ROTATIONS[1].x);
}

// `n` times four rounds, each time followed by words of the key.
fn t_rounds_of_four(n: u32, key: vec2<u32>, counter: vec2<u32>) -> vec2<u32> {
    var keys = vec3(key, 0x1bd11bdau ^ key.x ^ key.y);
    var x = counter + keys.xy;
    for (var i = 1u; i <= n; i++) {
        let rotations = select(T_ROTATIONS[1], T_ROTATIONS[0], i % 2u == 1u);
        x = t_round(t_round(x, rotations.x), rotations.y);
        x = t_round(t_round(x, rotations.z), rotations.w);
        keys = keys.yzx;
        x += keys.xy + vec2(0u, i);
    }
    return x;
}

fn t_round(x: vec2<u32>, rotation: u32) -> vec2<u32> {
    let sum = x.x + x.y;
    return vec2(sum, ((x.y << rotation) | (x.y >> (32u - rotation))) ^ sum);
}
