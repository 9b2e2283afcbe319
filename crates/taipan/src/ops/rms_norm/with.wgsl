// WITH: what comes with x: a residual is added to it; a gate, silu(gate), is multiplied before or
// after the norm.
const RESIDUAL = 1u;
const GATE_FIRST = 2u;
const NORM_FIRST = 3u;
