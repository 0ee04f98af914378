//! Ranks and owners in processes of their own, killed at planted points: no wrong byte, no hang, and leases return.
//!
//! `LOSSFEED_NODE_KILLS=1000 cargo test -p lossfeed-node kills -- --nocapture` kills so many ranks, and an owner for
//! every ten of them (default: 40 and 4), half of them over an arena that is too small for the samples.

use std::collections::BTreeMap;
use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

use crate::planted::planted;
use crate::tests::{key, read};
use crate::{Admin, Client, Key, Offer, Serve, Settings, Whose, serve, start};

/// Samples that no process forgets, and all samples.
const KEPT: u32 = 1000;
const ALL: u32 = 1100;
const RANKS: usize = 3;
const OF_RANKS: [&str; 5] = ["lease", "claimed", "offer begun", "offer sent", "in the copy"];
const OF_OWNERS: [&str; 6] = ["asked", "offered", "put", "published", "tagged", "adopting"];
/// An owner that has not come to its planned end in [`SOON`] is killed at any moment.
const ANY: &str = "any moment";
const SOON: Duration = Duration::from_millis(400);

/// The end of this process: where, and after how many times.
struct Plan {
    point: &'static str,
    folder: PathBuf,
    left: AtomicU64,
}

fn plan() -> Option<&'static Plan> {
    static PLAN: OnceLock<Option<Plan>> = OnceLock::new();
    let drawn = || {
        let (role, folder) = (std::env::var("KILLED_ROLE").ok()?, PathBuf::from(std::env::var_os("KILLED_FOLDER")?));
        let points = if role == "owner" { &OF_OWNERS[..] } else { &OF_RANKS };
        let adopts = role == "owner" && folder.join("owners-adopt").exists();
        let point = if adopts { "adopting" } else { *points.get(drawn(points.len() as u64) as usize)? };
        let most = if point == "adopting" { 500 } else { 40 };
        let dies = role != "owner" || folder.join("owners-die").exists();
        dies.then(|| Plan { point, folder, left: AtomicU64::new(1 + drawn(most)) })
    };
    PLAN.get_or_init(drawn).as_ref()
}

fn drawn(below: u64) -> u64 {
    start::random() % below
}

/// Kills this process if that is planned for here and now.
pub(crate) fn at(point: &'static str) {
    let Some(plan) = plan().filter(|plan| plan.point == point) else { return };
    if plan.left.fetch_sub(1, Relaxed) == 1 {
        note(&plan.folder, point);
        let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
    }
}

fn note(folder: &Path, point: &str) {
    let mut deaths = std::fs::OpenOptions::new().append(true).create(true).open(folder.join("deaths")).unwrap();
    deaths.write_all(format!("{point}\n").as_bytes()).unwrap();
}

/// Kills the owner that serves now.
fn kill_owner(folder: &Path) {
    let admin = Admin::connect(&[folder.join("run")]).ok().flatten();
    let pid = admin.and_then(|admin| admin.list().ok()).and_then(|now| rustix::process::Pid::from_raw(now.pid as i32));
    if pid.is_some_and(|pid| rustix::process::kill_process(pid, rustix::process::Signal::KILL).is_ok()) {
        note(folder, ANY);
    }
}

/// The deaths so far, by point.
fn deaths(folder: &Path) -> BTreeMap<String, usize> {
    let mut deaths = BTreeMap::new();
    for point in std::fs::read_to_string(folder.join("deaths")).unwrap_or_default().lines() {
        *deaths.entry(point.to_owned()).or_insert(0) += 1;
    }
    deaths
}

fn of_owners(deaths: &BTreeMap<String, usize>) -> usize {
    OF_OWNERS.iter().chain([&ANY]).filter_map(|point| deaths.get(*point)).sum()
}

fn client(folder: &Path, bytes: u64) -> Client {
    let this = std::env::current_exe().unwrap();
    let words = "kills_tests::owner_process --exact --ignored --nocapture";
    // The client appends --folder and --bytes with their values.
    let script = format!(
        "KILLED_ROLE=owner KILLED_FOLDER='{}' KILLED_BYTES=\"$3\" exec '{}' {words}",
        folder.display(),
        this.display()
    );
    let settings = Settings {
        folders: vec![folder.join("run")],
        bytes,
        command: vec!["sh".into(), "-c".into(), script.into()],
        job: "job".into(),
        dataset: 7,
        name: "data".into(),
        samples: ALL,
    };
    Client::new(settings).unwrap().0
}

#[test]
#[ignore = "a process of the test below"]
fn owner_process() {
    let Some(bytes) = std::env::var("KILLED_BYTES").ok().and_then(|bytes| bytes.parse().ok()) else { return };
    let folder = PathBuf::from(std::env::var_os("KILLED_FOLDER").unwrap()).join("run");
    serve(&Serve { folder, bytes, idle: Duration::from_secs(2) }).unwrap();
}

#[test]
#[ignore = "a process of the test below"]
fn rank_process() {
    let Some(folder) = std::env::var_os("KILLED_FOLDER").map(PathBuf::from) else { return };
    let client = client(&folder, std::env::var("KILLED_BYTES").unwrap().parse().unwrap());
    loop {
        let first = drawn(u64::from(ALL)) as u32;
        let ids: Vec<u32> = (first..ALL.min(first + 1 + drawn(64) as u32)).collect();
        deliver(&client, &ids, &mut |_| ());
        if drawn(3) == 0 {
            let forgotten: Vec<Key> = (0..20).map(|_| key(KEPT + drawn(u64::from(ALL - KEPT)) as u32)).collect();
            client.forget(&forgotten);
        }
    }
}

/// Delivers all of `ids` as a loader does, checks each byte, and tells what was fetched.
fn deliver(client: &Client, ids: &[u32], fetched: &mut dyn FnMut(u32)) {
    let there = read(client, ids);
    let mut left: Vec<u32> = ids.iter().copied().filter(|id| !there.contains(id)).collect();
    let mut flight = client.flight();
    while !left.is_empty() {
        let keys: Vec<Key> = left.iter().map(|&id| key(id)).collect();
        let whose =
            flight.as_mut().map_or_else(|| vec![Whose::Ours; keys.len()], |flight| flight.claim(&keys, &|| false));
        planted("claimed");
        let of = |who| left.iter().zip(&whose).filter(|(_, w)| **w == who).map(|(&id, _)| id).collect::<Vec<u32>>();
        let mut ours = of(Whose::Ours);
        let there = of(Whose::There);
        let came = read(client, &there);
        ours.extend(there.iter().filter(|id| !came.contains(id)));
        for id in ours {
            fetched(id);
            if let Some(flight) = &mut flight {
                let data = crate::tests::data(id);
                flight.offer(&Offer { key: key(id), id, cost: Duration::from_micros(300), data: &data });
                planted("offer sent");
            }
        }
        left = of(Whose::Theirs);
    }
}

fn rank(folder: &Path, bytes: u64) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["kills_tests::rank_process", "--exact", "--ignored", "--nocapture"]);
    command.env("KILLED_ROLE", "rank").env("KILLED_FOLDER", folder).env("KILLED_BYTES", bytes.to_string());
    command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap()
}

/// Kills so many ranks, and a tenth as many owners, of an arena of `bytes`.
fn campaign(kills: usize, bytes: u64) {
    let root = tempfile::tempdir().unwrap();
    let (folder, over) = (root.path(), AtomicBool::new(false));
    let (waits, lost) = (Mutex::new(Vec::new()), AtomicU64::new(0));
    let owners = kills / 10;
    let witness = client(folder, bytes);
    deliver(&witness, &(0..ALL).collect::<Vec<u32>>(), &mut |_| ());
    // This owner has no planned end: those after it have.
    std::fs::write(folder.join("owners-die"), "").unwrap();
    kill_owner(folder);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Relaxed) {
                let first = drawn(u64::from(ALL)) as u32;
                let begun = Instant::now();
                deliver(&witness, &(first..ALL.min(first + 64)).collect::<Vec<u32>>(), &mut |id| {
                    lost.fetch_add(u64::from(id < KEPT), Relaxed);
                });
                waits.lock().unwrap().push(begun.elapsed());
            }
        });
        let until = Instant::now() + Duration::from_secs(20) + Duration::from_millis(500) * kills as u32;
        let mut ranks: Vec<Child> = (0..RANKS).map(|_| rank(folder, bytes)).collect();
        let (mut killed, mut failed) = (0, 0);
        let died = || of_owners(&deaths(folder));
        let mut last = (0, Instant::now());
        while (killed < kills || died() < owners) && Instant::now() < until {
            let now = died();
            if now != last.0 {
                last = (now, Instant::now());
            } else if last.1.elapsed() > SOON {
                kill_owner(folder);
            }
            for child in &mut ranks {
                let Some(status) = child.try_wait().unwrap() else { continue };
                failed += usize::from(status.signal() != Some(9));
                killed += 1;
                *child = rank(folder, bytes);
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        for child in &mut ranks {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        over.store(true, Relaxed);
        assert_eq!(failed, 0, "ranks of {killed} found a wrong byte");
        assert!(killed >= kills && died() >= owners, "{killed} ranks: {:?}", deaths(folder));
    });
    std::fs::remove_file(folder.join("owners-die")).unwrap();
    let mut waits = waits.into_inner().unwrap();
    waits.sort_unstable();
    let (all, lost) = (deaths(folder), lost.load(Relaxed));
    let p99 = waits.get(waits.len() * 99 / 100).copied().unwrap_or_default();
    println!(
        "arena {bytes}: {all:?}; {} calls of the one that lives, 99 of 100 within {p99:?}, longest {:?}; it \
         fetched {lost} samples itself while owners were gone",
        waits.len(),
        waits.last()
    );
    assert!(waits.last().is_some_and(|longest| *longest < Duration::from_secs(12)), "{:?}", waits.last());
    let all: Vec<u32> = (0..ALL).collect();
    if bytes > 4 * all.iter().map(|&id| crate::tests::data(id).len() as u64).sum::<u64>() {
        outlive(folder, &witness, &all, (kills / 10).min(20));
    }
    // Leases of the dead would keep their samples' memory. The last planned owner may still be there: it dies later.
    let emptied = (0..200).any(|_| {
        deliver(&witness, &all, &mut |_| ());
        std::thread::sleep(Duration::from_millis(20));
        let admin = Admin::connect(&[folder.join("run")]).ok().flatten();
        admin.is_some_and(|admin| admin.drop_dataset("data").is_ok() && admin.list().is_ok_and(|now| now.bytes == 0))
    });
    assert!(emptied, "leases of dead processes are still there");
}

/// Owners die one after the other while they take over what the one before had taken over: all of it is still there.
fn outlive(folder: &Path, witness: &Client, all: &[u32], owners: usize) {
    let died = || deaths(folder).get("adopting").copied().unwrap_or(0);
    let until = Instant::now() + Duration::from_secs(30 + 8 * owners as u64);
    let held = |all: &[u32]| (0..20).map(|_| read(witness, all).len()).max();
    while read(witness, all).len() < all.len() && Instant::now() < until {
        deliver(witness, all, &mut |_| ());
    }
    ["owners-adopt", "owners-die"].iter().for_each(|file| std::fs::write(folder.join(file), "").unwrap());
    let before = died();
    kill_owner(folder);
    while died() < before + owners && Instant::now() < until {
        read(witness, all);
    }
    ["owners-adopt", "owners-die"].iter().for_each(|file| std::fs::remove_file(folder.join(file)).unwrap());
    kill_owner(folder);
    while held(all) < Some(all.len()) && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(20));
    }
    println!("after {} owners that died while they took over: {:?} of {}", died() - before, held(all), all.len());
    assert!(died() >= before + owners && held(all) >= Some(all.len() * 99 / 100), "{:?}", deaths(folder));
}

#[test]
fn ranks_and_owners_that_are_killed_cost_no_byte_and_no_wait() {
    let kills = std::env::var("LOSSFEED_NODE_KILLS").ok().and_then(|kills| kills.parse().ok()).unwrap_or(40);
    campaign(kills / 2, 1 << 20);
    campaign(kills - kills / 2, 48 << 10);
}
