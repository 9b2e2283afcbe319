// An invocation computes one pair of a head, or one channel that stays, of all ranks.
struct Place {
    // The pair; p.pairs or more for a channel that stays.
    pair: u32,
    // Among the elements of turns.
    turn: u32,
    // The channels in the first rank, the same twice for one that stays.
    channels: vec2<u32>,
}

fn place(i: u32) -> Place {
    let slots = p.channels - p.pairs;
    let slot = i % slots;
    let head = i / slots;
    let step = head / p.heads;
    let first = (step * p.ranks * p.heads + head % p.heads) * p.channels;
    let half = p.channels / 2u;
    var a = slot;
    var b = slot;
    if slot < p.pairs {
        a = select(2u * slot, slot, HALVES == 1u);
        b = a + select(1u, half, HALVES == 1u);
    } else if HALVES == 0u || slot >= half {
        a = slot + p.pairs;
        b = a;
    }
    return Place(slot, head * p.pairs + slot, vec2(first + a, first + b));
}

// The distance of ranks.
fn rank_stride() -> u32 {
    return p.heads * p.channels;
}

// The angle of a part of a turn, of which whole ones count for nothing.
fn angle(turns: f32) -> f32 {
    return 6.283185307179586 * (turns - round(turns));
}
