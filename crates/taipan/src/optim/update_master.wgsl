// The parameter is its master copy, rounded.
@group(0) @binding(4) var<storage, read_write> parameter: array<Elem>;
@group(0) @binding(5) var<storage, read_write> master: array<f32>;

fn element(i: u32) {
    if plan[APPLY] == 1.0 {
        let theta = updated(i, master[i]);
        master[i] = theta;
        parameter[i] = Elem(theta);
    }
}
