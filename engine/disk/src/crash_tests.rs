//! Processes killed while they write: what they leave is whole records, found by whoever comes next.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::tests::{key, offer, reads, small};

const FOLDER: &str = "LOSSFEED_TEST_DISK_FOLDER";
const FIRST: &str = "LOSSFEED_TEST_DISK_FIRST";
/// Enough for segments to give way, in each of a few runs.
const LIMIT: u64 = 400 << 10;

/// What the killed process does: it writes until it is killed.
#[test]
#[ignore = "only as a process that another test kills"]
fn write_until_killed() {
    let Some(folder) = std::env::var_os(FOLDER).map(PathBuf::from) else { return };
    let first: u64 = std::env::var(FIRST).unwrap().parse().unwrap();
    let disk = small(&folder, LIMIT);
    for n in first.. {
        offer(&disk, key(n));
        reads(&disk, key(n.wrapping_mul(7) % (n + 1)));
        if n % 16 == 0 {
            disk.settle();
        }
    }
}

/// `LOSSFEED_TEST_KILLS=1000` kills more often.
#[test]
fn killed_at_any_moment_it_leaves_no_wrong_byte_and_no_error() {
    let kills: u64 = std::env::var("LOSSFEED_TEST_KILLS").map_or(40, |n| n.parse().unwrap());
    let folder = tempfile::tempdir().unwrap();
    let (mut found, mut first) = (0, 0u64);
    for kill in 0..kills {
        let child = || {
            Command::new(std::env::current_exe().unwrap())
                .args(["--exact", "crash_tests::write_until_killed", "--ignored"])
                .envs([(FOLDER, folder.path().as_os_str())])
                .env(FIRST, first.to_string())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .unwrap()
        };
        // Sometimes two of them write at the same time.
        let mut children: Vec<_> = (0..=u64::from(kill % 4 == 3)).map(|_| child()).collect();
        std::thread::sleep(Duration::from_micros(key(kill) as u64 % 30_000 + 2_000));
        for child in &mut children {
            child.kill().unwrap();
            assert!(child.wait().unwrap().code().is_none(), "it ended by itself");
        }
        let disk = small(folder.path(), LIMIT);
        found = (0..20_000).filter(|&n| reads(&disk, key(n))).count();
        assert_eq!((found, disk.numbers().damaged), (disk.records().min(found), 0));
        first = (first + 101) % 9_000;
    }
    assert!(found > 100, "{found}: the processes were killed before they had written anything");
}
