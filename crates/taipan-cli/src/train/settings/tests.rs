use super::*;

fn settings(toml: &str) -> Result<Settings, String> {
    let flags: Flags = toml::from_str(toml).unwrap();
    Settings::new(&flags, 1).map_err(|error| error.to_string())
}

#[test]
fn every_preset_is_valid() {
    for preset in Preset::ALL {
        let settings = settings(&format!("preset = '{preset}'")).unwrap();
        assert_eq!(settings.preset, preset.to_string());
        assert_eq!(settings.shape(50280), preset.config(50280));
        assert_eq!(settings.recipe_of(&preset.config(1)), preset.recipe());
    }
}

#[test]
fn derived_defaults_can_be_overridden() {
    let derived = settings("steps = 100\nlr = 0.5\nd-model = 40").unwrap();
    assert_eq!((derived.warmup, derived.decay, derived.eval_interval), (5, 20, 10));
    assert_eq!((derived.min_lr, derived.dt_rank), (0.05, 3));
    let given = settings("steps = 100\nlr = 0.5\nmin-lr = 0\nwarmup = 7\ndt-rank = 2").unwrap();
    assert_eq!((given.min_lr, given.warmup, given.dt_rank), (0.0, 7, 2));
}

#[test]
fn invalid_values_are_refused() {
    let cases = [
        ("steps = 0", "--steps is 0, expected 1 to 1099511627776"),
        ("beta1 = 1.0", "--beta1 is 1, expected at least 0 and below 1"),
        ("lr = nan", "--lr is NaN, expected a positive number"),
        ("lr = -1", "--lr is -1, expected a positive number"),
        ("weight-decay = inf", "--weight-decay is inf, expected a finite number of 0 or more"),
        ("lr = 1e-4\nmin-lr = 1e-3", "--min-lr is 0.001, expected 0 to 0.0001"),
        ("steps = 10\nwarmup = 11", "--warmup is 11, expected 0 to 10"),
        ("steps = 10\nstop-after = 11", "--stop-after is 11"),
        ("d-model = 100000\nexpand = 3", "--expand is 3, expected 1 to 2"),
        ("d-state = 300", "--d-state is 300, expected 1 to 256"),
        ("grad-clip = -1", "--grad-clip is -1, expected a positive number"),
        ("keep = 0", "--keep is 0, expected 1 or more"),
        (
            "batch-size = 65536\nblock-size = 65536",
            "--batch-size × --block-size × --grad-accum is 4294967296, expected 1 to ",
        ),
        ("lora = 8", "--lora needs --from, a model to adapt"),
        ("lora-alpha = 8", "--lora-alpha needs --lora"),
        ("arch = 'mamba2'\ndt-rank = 3", "--dt-rank is of --arch mamba"),
        ("head-dim = 32", "--head-dim is of --arch mamba2, mamba3, hybrid"),
        ("arch = 'mamba2'\nd-ff = 32", "--d-ff is of --arch hybrid"),
        ("layer-pattern = 'MA'", "--layer-pattern is of --arch hybrid"),
        (
            "arch = 'hybrid'\nlayer-pattern = 'MMA'",
            "--n-layer is 4, expected a multiple of --layer-pattern's, 3",
        ),
        (
            "arch = 'hybrid'\nlayer-pattern = 'MB'",
            "--layer-pattern is ones with two mixers, expected what files of Granite 4.0 H can say",
        ),
        ("arch = 'hybrid'\nn-head = 3", "--n-head is 3, expected a divisor of --d-model, 128"),
        ("arch = 'hybrid'\nn-kv-head = 3", "--n-kv-head is 3, expected a divisor of"),
        ("n-layer = 4611686018427387904", "--n-layer is 4611686018427387904, expected 1 to"),
        ("arch = 'mamba'\npreset = 'mamba2-tiny'", "--arch and --preset do not fit"),
        ("arch = 'mamba2'\nhead-dim = 48", "--head-dim is 48, expected a divisor of"),
        ("preset = 'huge'", "--preset: huge found, expected one of tiny, "),
        ("tokenizer = 'a'\ntrain-tokenizer = 300", "--tokenizer and --train-tokenizer"),
    ];
    for (toml, start) in cases {
        let error = settings(toml).unwrap_err();
        assert!(error.starts_with(start), "{toml}: {error}");
    }
}
