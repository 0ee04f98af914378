//! What the files say, and that nothing of the input breaks out of them.

use super::*;
use crate::args::LabReplayArgs;
use crate::replay::report;

fn trace(name: &str) -> (tempfile::TempDir, String) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(name);
    let mut text = String::from("epoch,step,id,loss\n");
    for access in 0..240u32 {
        text += &format!("{},{},{},{}\n", access / 60, access / 10, (access * 7 + access / 60) % 60, access % 13);
    }
    std::fs::write(&path, text).unwrap();
    (folder, path.to_str().unwrap().to_owned())
}

/// The page of these options.
fn made(options: &[&str]) -> String {
    let html = tempfile::NamedTempFile::new().unwrap();
    let mut args = LabReplayArgs::of(options);
    args.html = Some(html.path().to_owned());
    let mut out = Vec::new();
    report(&args, &mut out).unwrap();
    assert!(!out.is_empty());
    std::fs::read_to_string(html.path()).unwrap()
}

/// Every tag closes what was opened last; answers the tags, and panics where they do not nest.
fn nested(page: &str) -> Vec<String> {
    let (mut open, mut all): (Vec<String>, Vec<String>) = (vec![], vec![]);
    let mut rest = page.strip_prefix("<!doctype html>").unwrap();
    while let Some(at) = rest.find('<') {
        let end = rest[at..].find('>').map(|end| at + end).unwrap();
        let tag = &rest[at + 1..end];
        let quotes = tag.matches('"').count();
        assert!(quotes.is_multiple_of(2) && !tag.contains('<'), "<{tag}>");
        rest = &rest[end + 1..];
        let name = tag.trim_start_matches('/').split([' ', '/']).next().unwrap().to_owned();
        if tag.starts_with('/') {
            assert_eq!(open.pop().as_ref(), Some(&name), "</{name}>");
        } else if !(tag.ends_with('/') || ["meta", "input"].contains(&&name[..])) {
            open.push(name.clone());
        }
        all.push(name);
    }
    assert!(open.is_empty(), "{open:?} are open");
    all
}

#[test]
fn the_page_is_whole_needs_nobody_and_shows_every_row() {
    let (_folder, path) = trace("run.csv");
    let page = made(&["--trace", &path, "--step-time=1ms", "--latency=1ms"]);
    let tags = nested(&page);
    assert!(!tags.iter().any(|tag| ["script", "link", "img", "iframe", "style-src"].contains(&&tag[..])));
    assert!(!page.contains("http") && !page.contains("url(") && !page.contains("@import"));
    for entry in &crate::policies::ALL {
        assert!(page.contains(&format!(">{}</text>", entry.name)), "{} has no line", entry.name);
        assert!(page.contains(&format!("</svg>{}</span>", entry.name)), "{} is not in the key", entry.name);
    }
    assert!(page.contains("<p>Cache of 10% (6 samples): ") && page.contains(" misses least, "));
    assert!(page.contains("shade, noise") && page.contains("prefers-color-scheme:dark"));
    assert!(
        page.contains("stall (s)") && page.contains("miss ratio (%)") && page.contains("cache size (% of the dataset)")
    );
    assert!(!page.contains("NaN") && !page.contains("inf"));
    let runs = tempfile::NamedTempFile::new().unwrap();
    let run = "{\"event\":\"run\",\"recipe\":\"<b>\",\"seed\":0,\"accuracy\":0.5,\"fetched_bytes\":7}\n";
    std::fs::write(runs.path(), run).unwrap();
    let page = made(&["--trace", &path, "--policy=lru", "--html=x", "--trained", runs.path().to_str().unwrap()]);
    nested(&page);
    assert!(page.contains("Accuracy against bytes") && page.contains(">&lt;b&gt;</text>"));
    // Closed loops, one epoch, no cache at all, and traces without scores.
    let closed = ["--sampler=uniform,cost-aware,replay", "--samples=90", "--epochs=3", "--batch-size=8"];
    let page = made(&closed);
    nested(&page);
    assert!(page.contains("cost-aware + importance, noise") && page.contains("ESS (% of deliveries)"));
    // Three epochs: 0, 1 and 2, and nothing between them.
    assert!(page.contains(">1</text>") && !page.contains(">0.5</text>") && !page.contains(">1.5</text>"));
    let single = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(single.path(), "epoch,step,id,loss\n0,0,4,\n").unwrap();
    let page = made(&["--trace", single.path().to_str().unwrap(), "--capacity-fraction=0,1"]);
    nested(&page);
    assert!(page.contains("each misses 100 %.") && page.contains("record two epochs or more"));
    assert!(page.contains("There is one epoch") && page.contains(">empty</text>") && !page.contains("NaN"));
}

#[test]
fn what_the_input_says_stays_text() {
    let (_folder, path) = trace("<script>alert(1)<&\"'.csv");
    let page = made(&["--trace", &path, "--policy=lru"]);
    nested(&page);
    assert!(page.contains("&lt;script&gt;alert(1)&lt;&amp;&quot;&#39;.csv") && !page.contains("<script"));
    assert_eq!(chart::escape("a\u{0}\u{1b}b\n"), "ab");
}

#[test]
fn a_file_that_cannot_be_written_is_said() {
    let (_folder, path) = trace("run.csv");
    let args = LabReplayArgs::of(&["--trace", &path, "--policy=lru", "--html=/nonexistent/page.html"]);
    let error = report(&args, &mut Vec::new()).unwrap_err().to_string();
    assert!(error.contains("cannot write /nonexistent/page.html"), "{error}");
}

#[test]
fn ticks_are_round_and_within_their_scale() {
    let ticks = |values, log| chart::Scale::new(values, (0.0, 1.0), log).ticks();
    assert_eq!(ticks((0.0, 100.0), false), [0.0, 20.0, 40.0, 60.0, 80.0, 100.0]);
    assert_eq!(ticks((1.0, 100.0), true), [1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0]);
    assert_eq!(ticks((3.0, 3.0), false), [3.0]);
    for (values, log) in [((0.07, 0.4), false), ((1e-9, 2e-9), false), ((1e-7, 1e9), true), ((3.0, 4.0), true)] {
        let found = ticks(values, log);
        assert!((1..=20).contains(&found.len()), "{found:?}");
        assert!(found.iter().all(|&tick| tick >= values.0 * 0.99 && tick <= values.1 * 1.01), "{found:?}");
    }
    let short = [0.0, 0.05, 12.5, 9999.0, 10_000.0, 1_281_167.0, 3e9].map(chart::short);
    assert_eq!(short, ["0", "0.05", "12.5", "9999", "10k", "1.281M", "3G"]);
    assert_eq!(chart::told_apart(&[0.02565, 0.2744, 2.9]), ["0.026", "0.27", "2.9"]);
    assert_eq!(chart::told_apart(&[1.501, 1.504]), ["1.501", "1.504"]);
}
