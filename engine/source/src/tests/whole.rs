//! Truths about shards that are kept whole: what was damaged on its way is read once more, and only once.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use crate::options::OpenOptions;
use crate::place::open;
use crate::sample::{News, Source};
use crate::tests::archive;
use crate::tests::web_double::Web;
use crate::types::SampleId;

/// Where the second sample lies: behind two headers and a block.
const SECOND: usize = 3 * 512;

/// A server of two shards that gives no parts, and its samples opened.
fn opened(checksums: bool, index_cache: Option<&std::path::Path>) -> (Web, Arc<dyn Source>) {
    let shard = |value: u8| archive(&[("c/0.png", &[value; 300]), ("c/1.png", &[value + 1; 300])]);
    let objects = HashMap::from([("/0.tar".to_owned(), shard(10)), ("/1.tar".to_owned(), shard(20))]);
    let web = Web::start(objects, false);
    let index_cache = index_cache.map(|folder| folder.to_owned());
    let options = OpenOptions { checksums, index_cache, ..OpenOptions::default() };
    let source = open(&format!("{}/{{0,1}}.tar", web.url), &options).unwrap();
    (web, source)
}

fn read(source: &dyn Source, id: SampleId) -> Result<Vec<u8>, String> {
    let mut came = Err("no answer".to_owned());
    source.fetch(&[id], &mut |_, answer| {
        came = answer.map(|payload| payload.data.to_vec()).map_err(|e| e.to_string());
        ControlFlow::Continue(())
    });
    came
}

#[test]
fn a_shard_whose_sample_is_doubted_is_read_once_more() {
    let (web, source) = opened(false, None);
    let [wrong, right] = [
        {
            let mut wrong = vec![11; 300];
            wrong[5] ^= 1;
            wrong
        },
        vec![11; 300],
    ];
    // The shards were read when they were indexed; both are read anew, and the first is damaged on its way.
    source.tell(News::Doubtful(&[0, 3]));
    let before = web.wholes();
    web.damage(vec![SECOND + 5]);
    assert_eq!(read(&*source, 1), Ok(wrong.clone()));
    assert_eq!((read(&*source, 3), web.wholes()), (Ok(vec![21; 300]), before + 2));
    // That was the second time: what is wrong now is taken to be the server's.
    source.tell(News::Doubtful(&[1]));
    assert_eq!((read(&*source, 1), web.wholes()), (Ok(wrong), before + 2));
    drop((web, source));

    // Damaged when it was indexed: it comes right.
    let (web, source) = {
        let (web, _) = opened(false, None);
        // One is asked for a part, and is left there; the next is kept.
        web.damage(vec![SECOND + 5; 2]);
        let source = open(&format!("{}/0.tar", web.url), &OpenOptions::default()).unwrap();
        (web, source)
    };
    assert_ne!(read(&*source, 1), Ok(right.clone()));
    source.tell(News::Doubtful(&[1]));
    assert_eq!(read(&*source, 1), Ok(right));
    let wholes = web.wholes();
    source.tell(News::Doubtful(&[0, 1]));
    assert_eq!((read(&*source, 0), web.wholes()), (Ok(vec![10; 300]), wholes));
}

#[test]
fn a_sample_with_another_checksum_comes_right_with_the_shard_that_is_read_anew() {
    let folder = tempfile::tempdir().unwrap();
    // The sums are those of the shards as they are; they are kept for who opens them again.
    drop(opened(true, Some(folder.path())));
    let objects = HashMap::from([("/0.tar".to_owned(), archive(&[("c/0.png", &[7; 300]), ("c/1.png", &[8; 300])]))]);
    let web = Web::start(objects, false);
    let options =
        OpenOptions { checksums: true, index_cache: Some(folder.path().to_owned()), ..OpenOptions::default() };
    let url = format!("{}/0.tar", web.url);
    drop(open(&url, &options).unwrap());
    let source = open(&url, &options).unwrap();
    let before = web.wholes();
    web.damage(vec![SECOND + 5]);
    assert_eq!((read(&*source, 1), web.wholes()), (Ok(vec![8; 300]), before + 2));
    assert_eq!((read(&*source, 0), web.wholes()), (Ok(vec![7; 300]), before + 2));
}
