// The elements of b, followed by those of c, of a state in a chunk. On the CPU, a read by all
// invocations is as many reads: subgroups of TEAM neighbouring invocations load them together.
struct BcRows {
    loaded: array<f32, 2u * STEPS / TEAM>,
}

fn load_bc(at: u32, local: u32) -> BcRows {
    var rows: BcRows;
    for (var i = 0u; i < 2u * STEPS / TEAM; i++) {
        rows.loaded[i] = prepared[at + i * TEAM + local % TEAM];
    }
    return rows;
}

// The lane to broadcast from must be a constant, which it is once the loops over steps are
// unrolled.
fn bc_at(rows: ptr<function, BcRows>, i: u32) -> f32 {
    let x = (*rows).loaded[i / TEAM];
    switch i % TEAM {
        case 0u: { return subgroupBroadcast(x, 0u); }
        case 1u: { return subgroupBroadcast(x, 1u); }
        case 2u: { return subgroupBroadcast(x, 2u); }
        case 3u: { return subgroupBroadcast(x, 3u); }
        case 4u: { return subgroupBroadcast(x, 4u); }
        case 5u: { return subgroupBroadcast(x, 5u); }
        case 6u: { return subgroupBroadcast(x, 6u); }
        case 7u: { return subgroupBroadcast(x, 7u); }
        case 8u: { return subgroupBroadcast(x, 8u); }
        case 9u: { return subgroupBroadcast(x, 9u); }
        case 10u: { return subgroupBroadcast(x, 10u); }
        case 11u: { return subgroupBroadcast(x, 11u); }
        case 12u: { return subgroupBroadcast(x, 12u); }
        case 13u: { return subgroupBroadcast(x, 13u); }
        case 14u: { return subgroupBroadcast(x, 14u); }
        case 15u: { return subgroupBroadcast(x, 15u); }
        case 16u: { return subgroupBroadcast(x, 16u); }
        case 17u: { return subgroupBroadcast(x, 17u); }
        case 18u: { return subgroupBroadcast(x, 18u); }
        case 19u: { return subgroupBroadcast(x, 19u); }
        case 20u: { return subgroupBroadcast(x, 20u); }
        case 21u: { return subgroupBroadcast(x, 21u); }
        case 22u: { return subgroupBroadcast(x, 22u); }
        case 23u: { return subgroupBroadcast(x, 23u); }
        case 24u: { return subgroupBroadcast(x, 24u); }
        case 25u: { return subgroupBroadcast(x, 25u); }
        case 26u: { return subgroupBroadcast(x, 26u); }
        case 27u: { return subgroupBroadcast(x, 27u); }
        case 28u: { return subgroupBroadcast(x, 28u); }
        case 29u: { return subgroupBroadcast(x, 29u); }
        case 30u: { return subgroupBroadcast(x, 30u); }
        default: { return subgroupBroadcast(x, 31u); }
    }
}
