//! The operations, one idea per file: public function, shape checks, gradient, kernels.

pub(crate) mod binary;
pub(crate) mod cast;
pub(crate) mod concat;
pub(crate) mod conv1d;
pub(crate) mod cross_entropy;
pub(crate) mod embedding;
pub(crate) mod function;
pub(crate) mod gated;
pub(crate) mod linear;
pub(crate) mod matmul;
pub(crate) mod reduce;
pub(crate) mod reshape;
pub(crate) mod rms_norm;
pub(crate) mod sample;
pub(crate) mod scan;
pub(crate) mod slice;
pub(crate) mod softmax;
pub(crate) mod topk;
pub(crate) mod transpose;
pub(crate) mod unary;

/// Every program that ops can launch, on GPUs that support these types.
#[cfg(test)]
pub(crate) fn programs(types: &[crate::DType]) -> Vec<crate::gpu::Program> {
    let floats: Vec<_> = types.iter().copied().filter(|dtype| dtype.is_float()).collect();
    let of_floats = [
        unary::programs,
        binary::programs,
        reduce::programs,
        softmax::programs,
        topk::programs,
        sample::programs,
        embedding::programs,
        cross_entropy::programs,
        linear::variant::programs,
        scan::programs,
        conv1d::programs,
        rms_norm::programs,
        gated::programs,
    ];
    let mut all = crate::gpu::programs(types);
    all.extend(cast::programs(types));
    all.extend(
        of_floats.iter().flat_map(|programs| floats.iter().flat_map(|&dtype| programs(dtype))),
    );
    all
}
