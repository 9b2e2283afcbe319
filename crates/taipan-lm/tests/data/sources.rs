//! The text that is found, and the text that is none.

use super::*;

#[test]
fn files_directories_and_patterns_are_found() {
    let directory = Directory::new("find");
    let root = directory.0.display().to_string();
    for name in ["b.txt", "a.txt", "deep/c.rs", "deep/er/d.txt", "z[1].txt"] {
        directory.write(name, name);
    }
    directory.write(".hidden/x.txt", "x");
    directory.write("deep/.y.txt", "y");
    directory.write("image.png", b"\x89PNG\0\0");
    directory.write("empty.txt", "");
    let found = |names: &[&str]| {
        let sources = Sources::find(names.iter().map(|name| format!("{root}/{name}"))).unwrap();
        let relative = |path: &PathBuf| path.strip_prefix(&root).unwrap().display().to_string();
        let skip =
            |file: &taipan_lm::data::Skipped| format!("{} {}", relative(&file.path), file.reason);
        let skipped: Vec<_> = sources.skipped().iter().map(skip).collect();
        // Every document is its own name.
        let data = build(&Directory::new("found"), &sources, &ALL);
        let order = Order { seed: 0, batch_size: 1, block_size: data.train_tokens() as usize };
        let mut ids: Vec<u8> =
            data.batch(&order, 0).unwrap().ids.iter().map(|id| *id as u8).collect();
        let first = ids.iter().position(|id| *id == 0).unwrap();
        ids.rotate_left(first + 1);
        ids.pop();
        let mut names: Vec<String> =
            ids.split(|id| *id == 0).map(|name| String::from_utf8(name.into()).unwrap()).collect();
        names.sort();
        assert_eq!(names.len(), sources.len());
        (names.join(" "), skipped.join(", "))
    };
    let both = |names: &str, skipped: &str| (names.to_owned(), skipped.to_owned());
    assert_eq!(
        found(&[""]),
        both(
            "a.txt b.txt deep/c.rs deep/er/d.txt z[1].txt",
            ".hidden hidden, deep/.y.txt hidden, empty.txt empty, image.png binary"
        )
    );
    assert_eq!(found(&["*.txt"]), both("a.txt b.txt z[1].txt", "empty.txt empty"));
    assert_eq!(found(&["**/*.txt"]).0, "a.txt b.txt deep/er/d.txt z[1].txt");
    assert_eq!(found(&["?.txt", "deep"]).0, "a.txt b.txt deep/c.rs deep/er/d.txt");
    assert_eq!(found(&["[ab].txt", "deep/er"]).0, "a.txt b.txt deep/er/d.txt");
    assert_eq!(found(&["z[1].txt"]).0, "z[1].txt", "a file's name goes before a pattern");
    assert_eq!(found(&["a.txt", "deep/../a.txt"]), both("a.txt", "deep/../a.txt named twice"));
    for pattern in ["deep/**", "d*", "deep/**/*", "deep/*"] {
        assert_eq!(found(&[pattern]).0, "deep/c.rs deep/er/d.txt");
        assert!(!found(&[pattern]).1.contains("twice"), "{pattern}");
    }
}

#[cfg(unix)]
#[test]
fn links_lead_to_files_but_not_in_circles() {
    let directory = Directory::new("links");
    directory.write("text/a.txt", "a");
    let outside = directory.write("b.txt", "b");
    std::os::unix::fs::symlink(outside, directory.0.join("text/link")).unwrap();
    std::os::unix::fs::symlink(&directory.0, directory.0.join("text/circle")).unwrap();
    let sources = Sources::find([directory.0.join("text")]).unwrap();
    assert_eq!(sources.len(), 2);
    assert_eq!(sources.skipped()[0].reason, Reason::Link);
    let broken = directory.0.join("text/broken");
    std::os::unix::fs::symlink("nowhere", &broken).unwrap();
    let shown = format!("{}: No such file or directory", broken.display());
    assert!(
        error(Sources::find([directory.0.join("text")])).starts_with(&shown),
        "never passed over"
    );
}

#[test]
fn what_leads_to_no_text_is_an_error() {
    let directory = Directory::new("no-text");
    let find = |name: &str| {
        let path = directory.0.join(name);
        error(Sources::find([&path])).replace(&directory.0.display().to_string(), "D")
    };
    directory.write("only/image.png", b"\0");
    directory.write("only/empty", "");
    assert_eq!(find("missing.txt"), "D/missing.txt: no such file or directory");
    assert_eq!(find("*.md"), "D/*.md: no text files found");
    assert_eq!(
        find("only"),
        "D/only: no text files found; of 2 skipped, the first, D/only/empty, is empty"
    );
    assert_eq!(find("only/image.png"), "D/only/image.png: binary, expected UTF-8 text");
    assert_eq!(find("only/empty"), "D/only/empty: empty, expected UTF-8 text");
    assert!(find("a[").contains("D/a[: "), "{}", find("a["));
    let none = Sources::texts::<String, String>([]);
    let built = Dataset::build(directory.cache(), &none, &Tokenizer::bytes(), &ALL);
    assert_eq!(error(built), "data: no text, expected some to train on");
    let built = Dataset::build(directory.cache(), &letters(&[0]), &Tokenizer::bytes(), &ALL);
    assert_eq!(error(built), "data: no text, expected some to train on");
    for (held_out, shown) in [(1.0, "1"), (-0.1, "-0.1"), (f64::NAN, "NaN")] {
        let split = Split { held_out, ..ALL };
        let built = Dataset::build(directory.cache(), &letters(&[9]), &Tokenizer::bytes(), &split);
        let expected = format!("held-out fraction: {shown} found, expected 0 to less than 1");
        assert_eq!(error(built), expected);
    }
}

#[test]
fn a_file_in_another_encoding_is_skipped_or_an_error_with_its_place() {
    let directory = Directory::new("utf8");
    let strict = FindOptions { encoding: Encoding::Strict, ..FindOptions::default() };
    let good = directory.write("good.txt", "good");
    let chunk = 32 << 10;
    for at in [0, 1, 100, chunk - 2, chunk - 1, chunk, chunk + 1, 2 * chunk - 1, 3 * chunk] {
        for line in [usize::MAX, 77] {
            // A text of letters of two bytes with a bad byte at `at`.
            let mut bytes: Vec<u8> = "é".bytes().cycle().take(at & !1).collect();
            bytes.resize(at, b'x');
            (line..at).step_by(line.max(2) & !1).for_each(|i| bytes[i & !1..][..2].fill(b'\n'));
            bytes.push(0xff);
            bytes.extend(b"and so on".repeat(1000));
            let path = directory.write("bad.txt", &bytes);
            let shown = format!("{}: not valid UTF-8: byte at offset {at}", path.display());
            assert_eq!(error(strict.find([&good, &path])), shown);
            assert_eq!(error(Sources::find([&path])), shown, "nothing else is found");
            for sources in [Sources::find([&good, &path]), Sources::find([&directory.0])] {
                let sources = sources.unwrap();
                assert_eq!(sources.len(), 1);
                assert_eq!(sources.skipped()[0].reason, Reason::NotUtf8 { offset: at as u64 });
            }
        }
    }
    // A character that the end of the file cuts off.
    let path = directory.write("cut.txt", b"caf\xc3");
    assert!(error(Sources::find([&path])).ends_with("cut.txt: not valid UTF-8: byte at offset 3"));
}

#[test]
fn a_file_that_changed_is_an_error_with_its_place() {
    let directory = Directory::new("changed");
    let path = directory.write("text.txt", "caf\u{e9}".repeat(100));
    let sources = Sources::find([&path]).unwrap();
    directory.write("text.txt", [b"caf".repeat(100), b"\xff".repeat(200)].concat());
    for held_out in [0.0, 0.5] {
        let split = Split { held_out, ..ALL };
        let built = Dataset::build(directory.cache(), &sources, &Tokenizer::bytes(), &split);
        let place = "text.txt: not valid UTF-8: byte at offset 300";
        assert!(error(built).ends_with(place));
        assert!(Dataset::open(directory.cache()).is_err());
        assert_eq!(fs::read_dir(directory.cache()).unwrap().count(), 0, "nothing is left");
    }
}

#[test]
fn characters_survive_the_borders_of_pieces() {
    let directory = Directory::new("borders");
    for text in [words(7, 100_000), "é".repeat(50_000), "日".repeat(33_333), "🙂".repeat(20_000)]
    {
        for shift in ["", "x", "xx", "xxx"] {
            let text = shift.to_owned() + &text;
            let path = directory.write("text.txt", &text);
            let data = build(&directory, &Sources::find([path]).unwrap(), &ALL);
            assert_eq!(data.train_tokens(), text.len() as u64 + 1);
            let len = text.len() + 1;
            let mut ids =
                data.batch(&Order { seed: 0, batch_size: 1, block_size: len }, 0).unwrap().ids;
            let first = ids.iter().position(|id| *id == 0).unwrap();
            ids.rotate_left(first + 1);
            ids.pop();
            assert!(Tokenizer::bytes().decode(&ids).unwrap() == text);
        }
    }
}

#[test]
fn the_output_is_no_part_of_the_text() {
    let directory = Directory::new("outside");
    let root = directory.0.display().to_string();
    for name in ["a.txt", "run/train.toml", "run/data/b.txt", "runs/c.txt"] {
        directory.write(name, name);
    }
    let find = |out: &str, names: &[&str]| {
        let names = names.iter().map(|name| format!("{root}/{name}"));
        let outside = Some(directory.0.join(out));
        FindOptions { outside, ..FindOptions::default() }.find(names)
    };
    for names in [&["."][..], &["**/*"], &["run/../**"]] {
        assert_eq!(find("run", names).unwrap().len(), 2, "{names:?}");
        assert_eq!(find("not-yet", names).unwrap().len(), 4, "{names:?}");
    }
    let sources = find("run", &["."]).unwrap();
    let [skipped] = sources.skipped() else { panic!("{:?}", sources.skipped()) };
    assert!(skipped.path.ends_with("run") && skipped.reason == Reason::Output, "{skipped:?}");
    for name in ["run", "run/train.toml", "run/data/*"] {
        let error = error(find("run", &[name]));
        assert!(error.contains("in the output directory"), "{name}: {error}");
    }
}
