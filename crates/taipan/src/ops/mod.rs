//! The operations, one idea per file or folder: public function, shape checks, gradient, kernels.
//! In a folder, `mod.rs` has what concerns both devices; of large ones, `cpu.rs` and `gpu.rs` have
//! the kernels.

pub(crate) mod affine;
pub(crate) mod attention;
pub(crate) mod binary;
pub(crate) mod broadcast;
pub(crate) mod cast;
pub(crate) mod compare;
pub(crate) mod concat;
pub(crate) mod conv1d;
pub(crate) mod cross_entropy;
pub(crate) mod cumsum;
pub(crate) mod dropout;
pub(crate) mod embedding;
pub(crate) mod gated;
pub(crate) mod gather;
pub(crate) mod layer_norm;
pub(crate) mod linear;
pub(crate) mod linear_cross_entropy;
pub(crate) mod losses;
pub(crate) mod matmul;
pub(crate) mod operators;
pub(crate) mod reduce;
pub(crate) mod reshape;
pub(crate) mod rms_norm;
pub(crate) mod rope;
pub(crate) mod rotate;
pub(crate) mod sample;
pub(crate) mod scan;
pub(crate) mod select;
pub(crate) mod shapes;
pub(crate) mod slice;
pub(crate) mod softmax;
pub(crate) mod split;
pub(crate) mod ssd;
pub(crate) mod statistics;
pub(crate) mod topk;
pub(crate) mod transpose;
pub(crate) mod turn_sum;
pub(crate) mod unary;

/// Every program that ops can launch, on GPUs that support these types.
#[cfg(test)]
pub(crate) fn programs(types: &[crate::DType]) -> Vec<crate::gpu::Program> {
    let floats: Vec<_> = types.iter().copied().filter(|dtype| dtype.is_float()).collect();
    let of_floats = [
        binary::programs,
        reduce::programs,
        softmax::programs,
        topk::programs,
        sample::programs,
        affine::programs,
        cross_entropy::programs,
        attention::programs,
        scan::programs,
        ssd::programs,
        conv1d::programs,
        rms_norm::programs,
        rope::programs,
        rotate::programs,
        turn_sum::programs,
        gated::programs,
        cumsum::programs,
        dropout::programs,
    ];
    let mut all = crate::gpu::programs(types);
    all.extend(cast::programs(types));
    let of_elements = [
        split::programs,
        compare::programs,
        select::programs,
        embedding::programs,
        gather::programs,
    ];
    all.extend(of_elements.iter().flat_map(|programs| types.iter().flat_map(|&t| programs(t))));
    all.extend(
        of_floats.iter().flat_map(|programs| floats.iter().flat_map(|&dtype| programs(dtype))),
    );
    all
}
