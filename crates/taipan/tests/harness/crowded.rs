//! More tasks than threads.

/// Call `f` with the numbers of 64 tasks of a pool of 8 threads, some times over: a thread that
/// waits for rayon inside one task may run another meanwhile.
pub fn tasks(f: impl Fn(usize) + Sync) {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(8).build().unwrap();
    for _ in 0..20 {
        pool.scope(|scope| {
            for task in 0..64 {
                let f = &f;
                scope.spawn(move |_| f(task));
            }
        });
    }
}
