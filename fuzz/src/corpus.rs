//! Runs each input of the corpora once with its target.

use std::path::Path;

use crate::targets::TARGETS;

const BLOCK_BYTES: usize = 512;

/// The files of a tar archive as corpus.py writes it: POSIX ustar, regular files only.
fn files(archive: &[u8]) -> Vec<(&str, &[u8])> {
    let (mut found, mut rest) = (Vec::new(), archive);
    while rest.first().is_some_and(|first| *first != 0) {
        let (header, behind) = rest.split_at(BLOCK_BYTES);
        let name = text(&header[..100]);
        assert_eq!((&header[257..262], header[156]), (&b"ustar"[..], b'0'), "{name}");
        let bytes = usize::from_str_radix(text(&header[124..136]), 8).expect("a size in octal");
        found.push((name, &behind[..bytes]));
        rest = &behind[bytes.next_multiple_of(BLOCK_BYTES)..];
    }
    found
}

fn text(field: &[u8]) -> &str {
    let end = field.iter().position(|byte| *byte == 0).unwrap_or(field.len());
    str::from_utf8(&field[..end]).expect("fields are ASCII")
}

#[test]
fn every_input_of_a_corpus_passes_its_target() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    let archives = folder.read_dir().expect("the folder of corpora").count();
    assert_eq!(archives, TARGETS.len(), "one archive for each target");
    for (name, run) in TARGETS {
        let archive = std::fs::read(folder.join(format!("{name}.tar"))).expect(name);
        let inputs = files(&archive);
        assert!(!inputs.is_empty(), "the corpus of {name} is empty");
        for (input, data) in inputs {
            eprintln!("{name}: {input}"); // shown if it fails
            run(data);
        }
    }
}
