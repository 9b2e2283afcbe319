//! The operations, one idea per file or folder: public function, shape checks, gradient, kernels.
//! In a folder, `mod.rs` has what concerns both devices; of large ones, `cpu.rs` and `gpu.rs` have
//! the kernels.

pub(crate) mod binary;
pub(crate) mod cast;
pub(crate) mod concat;
pub(crate) mod conv1d;
pub(crate) mod cross_entropy;
pub(crate) mod embedding;
pub(crate) mod gated;
pub(crate) mod linear;
pub(crate) mod linear_cross_entropy;
pub(crate) mod matmul;
pub(crate) mod reduce;
pub(crate) mod reshape;
pub(crate) mod rms_norm;
pub(crate) mod sample;
pub(crate) mod scale;
pub(crate) mod scan;
pub(crate) mod slice;
pub(crate) mod softmax;
pub(crate) mod split;
pub(crate) mod topk;
pub(crate) mod transpose;
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
        scale::programs,
        embedding::programs,
        cross_entropy::programs,
        scan::programs,
        conv1d::programs,
        rms_norm::programs,
        gated::programs,
    ];
    let mut all = crate::gpu::programs(types);
    all.extend(cast::programs(types));
    all.extend(types.iter().flat_map(|&dtype| split::programs(dtype)));
    all.extend(
        of_floats.iter().flat_map(|programs| floats.iter().flat_map(|&dtype| programs(dtype))),
    );
    all
}
