// The values of the plan: see decide.rs.
const APPLY = 0u;
const FACTOR = 1u;
const UNBIAS_M = 2u;
const UNBIAS_ROOT_V = 3u;
