// Threefry-2x32 with 20 rounds: 64 random bits from a key and a counter, those of cpu/threefry.rs.
const T_ROTATIONS = array<vec4<u32>, 2>(vec4(13u, 15u, 26u, 6u), vec4(17u, 29u, 16u, 24u));

fn threefry(key: vec2<u32>, counter: vec2<u32>) -> vec2<u32> {
    var keys = vec3(key, 0x1bd11bdau ^ key.x ^ key.y);
    var x = counter + keys.xy;
    // Four rounds, then words of the key; five times.
    for (var i = 1u; i <= 5u; i++) {
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
