//! Truths about AWS's files, what is decided from them, and what is fetched.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use object_store::CredentialProvider;
use proptest::prelude::*;

use super::answers::{Lent, of_login, of_process, of_role, of_session};
use super::chain::{Asked, Decision, Plan, decide};
use super::profiles::{Kind, Profiles};
use super::ways::Ways;
use super::{Provider, process};
use crate::error::{ErrorKind, Result};
use crate::runtime;

/// Stands in every secret of these tests, and in no text for people.
const SECRET: &str = "S3CRET";

fn files(config: &str, credentials: &str) -> Result<Profiles> {
    let mut files = Profiles::default();
    files.add(config, Kind::Config, "config")?;
    files.add(credentials, Kind::Credentials, "credentials")?;
    Ok(files)
}

/// What is decided with these variables (those of the client as settings, too) and store options.
fn decided(files: &Profiles, variables: &[(&str, &str)], options: &[(&str, &str)]) -> Result<Decision> {
    let found: BTreeMap<_, _> = variables.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
    let owned = |(key, value): &(&str, &str)| (key.to_lowercase(), value.to_string());
    let mut settings: Vec<_> = variables.iter().map(owned).collect();
    let of_environment = settings.len();
    settings.extend(options.iter().filter(|(key, _)| *key != "profile").map(owned));
    let profile = options.iter().find(|(key, _)| *key == "profile").map(|(_, value)| value.to_string());
    let variable = |name: &str| found.get(name).cloned();
    decide(&Asked { profile, variable: &variable, settings: &settings, of_environment }, files)
}

/// A plan in a word, with what it is made of.
fn told(plan: &Plan) -> String {
    match plan {
        Plan::Client(settings) => {
            settings.iter().fold("client".to_owned(), |text, (key, value)| format!("{text} {key}={value}"))
        }
        Plan::Keys(keys) => format!("keys {}{}", keys.key_id, if keys.token.is_some() { " token" } else { "" }),
        Plan::Process(command) => format!("process {command}"),
        Plan::Session(s) => format!("session {} {} {} {}", s.cached_as, s.region, s.account, s.role),
        Plan::Role(role, from) => {
            format!("role {} {:?} from {}", role.arn, role.external_id.as_deref().unwrap_or(""), told(from))
        }
        Plan::Machine => "machine".to_owned(),
    }
}

const CONFIG: &str = "\u{feff}# ours\n\
    [default]\nregion = eu-west-1 # near\r\noutput=json\n\
    [profile keys]\naws_access_key_id = A\naws_secret_access_key = S3CRET\n\
    [profile \"two words\"]\ncredential_process = /opt/x --a \"b # c\"\n  \n\
    [profile chained]\nrole_arn = arn:2\nsource_profile = role\n\
    [profile role]\nROLE_ARN=arn:1\nsource_profile=temporary\nexternal_id = e=1\nservices = local\nregion = us-east-2\n\
    [profile own]\nrole_arn=arn:3\nsource_profile=own\naws_access_key_id=O\naws_secret_access_key=S3CRET\n\
    [profile login]\nsso_session = me\nsso_account_id = 1\nsso_role_name = reader\n\
    [profile older]\nsso_start_url = https://x/start\nsso_region = eu-north-1\nsso_account_id = 2\nsso_role_name = r\n\
    [profile machine]\nrole_arn=arn:4\ncredential_source=Ec2InstanceMetadata\n\
    [profile outside]\nrole_arn=arn:5\ncredential_source=Environment\n\
    [profile web]\nrole_arn=arn:6\nweb_identity_token_file=/token\n\
    [profile round]\nrole_arn=arn\nsource_profile=about\n[profile about]\nrole_arn=arn\nsource_profile=round\n\
    [profile device]\nrole_arn=arn\nsource_profile=keys\nmfa_serial=arn:mfa\n\
    [profile both]\nrole_arn=arn\nsource_profile=keys\ncredential_source=Environment\n\
    [profile nothing]\nrole_arn=arn\n[profile empty]\nregion =\n\
    [profile lost]\nrole_arn=arn\nsource_profile=gone\n[profile unknown]\nsso_session=gone\n\
    [profile half]\naws_access_key_id=A\n[profile partial]\nsso_session=me\n\
    [profile line]\naws_access_key_id=A\naws_secret_access_key=S3CRET\\\n\
    [sso-session me]\nsso_region = eu-central-1\nsso_start_url = https://me/start\n\
    [services local]\ns3 =\n  endpoint_url = http://localhost:9000\n  addressing_style = path\nsts =\n  endpoint_url = http://localhost:9001\n\
    [plugins]\nx = y\n";
const CREDENTIALS: &str = "[temporary]\naws_access_key_id = T\naws_secret_access_key = S3CRET\naws_session_token = S3CRET\n\
    [keys]\naws_access_key_id = B\naws_secret_access_key = S3CRET\n";

#[test]
fn a_profile_says_where_credentials_come_from() {
    let files = files(CONFIG, CREDENTIALS).unwrap();
    let of = |profile: &str| decided(&files, &[("AWS_PROFILE", profile)], &[]).map(|d| (told(&d.plan), d.settings));
    for (profile, plan) in [
        ("default", "machine"),
        // The credentials file has the last word.
        ("keys", "keys B"),
        ("temporary", "keys T token"),
        ("two words", "process /opt/x --a \"b # c\""),
        ("role", "role arn:1 \"e=1\" from keys T token"),
        ("chained", "role arn:2 \"\" from role arn:1 \"e=1\" from keys T token"),
        ("own", "role arn:3 \"\" from keys O"),
        ("login", "session me eu-central-1 1 reader"),
        ("older", "session https://x/start eu-north-1 2 r"),
        ("machine", "role arn:4 \"\" from client"),
        ("web", "client web_identity_token_file=/token role_arn=arn:6"),
        ("empty", "machine"),
    ] {
        assert_eq!(of(profile).unwrap().0, plan, "{profile}");
    }
    assert_eq!(of("default").unwrap().1, [("region", "eu-west-1".to_owned())]);
    let local = [("region", "us-east-2".to_owned()), ("endpoint", "http://localhost:9000".to_owned())];
    assert_eq!(of("role").unwrap().1, local);
    for (profile, words) in [
        ("round", "takes its credentials from itself: round from about from round"),
        ("device", "mfa_serial"),
        ("both", "both source_profile and credential_source"),
        ("nothing", "nothing to assume it with"),
        ("lost", "\"gone\", which is not there or has none"),
        ("unknown", "sso_session \"gone\""),
        ("half", "aws_secret_access_key is missing"),
        ("partial", "no sso_account_id"),
        ("outside", "credential_source = Environment, and there is nothing"),
        ("elsewhere", "neither of AWS's files"),
    ] {
        let error = of(profile).unwrap_err();
        assert!(error.kind() == ErrorKind::Settings && error.to_string().contains(words), "{profile}: {error}");
        assert!(!error.to_string().contains(SECRET), "{error}");
    }
}

#[test]
fn what_is_nearer_comes_first() {
    let files = files(CONFIG, CREDENTIALS).unwrap();
    let keys = [("AWS_ACCESS_KEY_ID", "E"), ("AWS_SECRET_ACCESS_KEY", SECRET), ("AWS_PROFILE", "keys")];
    let of = |variables: &[(&str, &str)], options: &[(&str, &str)]| {
        decided(&files, variables, options).map(|d| told(&d.plan))
    };
    assert_eq!(of(&keys, &[]).unwrap(), "client", "keys of the environment before its profile");
    assert_eq!(
        of(&keys, &[("profile", "temporary")]).unwrap(),
        "keys T token",
        "a profile in code before the environment"
    );
    assert_eq!(
        of(&[], &[("profile", "keys"), ("access_key_id", "O"), ("secret_access_key", SECRET)]).unwrap(),
        "client"
    );
    assert_eq!(of(&[("AWS_PROFILE", "gone")], &[("skip_signature", "true")]).unwrap(), "client");
    assert_eq!(of(&[("AWS_PROFILE", "keys")], &[("skip_signature", "false")]).unwrap(), "keys B");
    let web = [("AWS_WEB_IDENTITY_TOKEN_FILE", "/t"), ("AWS_ROLE_ARN", "arn"), ("AWS_PROFILE", "keys")];
    assert_eq!(of(&web, &[]).unwrap(), "client", "a web identity before a profile");
    assert_eq!(
        of(&[("AWS_CONTAINER_CREDENTIALS_FULL_URI", "http://x"), ("AWS_PROFILE", "keys")], &[]).unwrap(),
        "keys B"
    );
    assert_eq!(of(&[("AWS_CONTAINER_CREDENTIALS_FULL_URI", "http://x")], &[]).unwrap(), "client");
    let outside = [keys[0], keys[1], ("AWS_SESSION_TOKEN", "t")];
    let plan = of(&outside, &[("profile", "outside")]).unwrap();
    assert_eq!(plan, "role arn:5 \"\" from client access_key_id=E secret_access_key=S3CRET session_token=t");
    // Region and endpoint that somebody gave stay.
    let given = decided(&files, &[("AWS_REGION", "x"), ("AWS_ENDPOINT_URL", "http://y"), ("AWS_PROFILE", "role")], &[])
        .unwrap();
    assert!(given.settings.is_empty());
    let ignored = [("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "true"), ("AWS_PROFILE", "role")];
    assert_eq!(decided(&files, &ignored, &[]).unwrap().settings, [("region", "us-east-2".to_owned())]);
}

#[test]
fn a_line_that_is_none_is_named_by_its_number_and_not_quoted() {
    for (text, line) in [
        ("[profile a]\nS3CRET\n", "line 2"),
        ("region = S3CRET\n", "line 1"),
        ("\n\n[profile a\nS3CRET", "line 3"),
        ("[default]\n= S3CRET\n", "line 2"),
        ("[default]\n  S3CRET\n", "line 2"),
    ] {
        let error = files(text, "").err().unwrap_or_else(|| panic!("{text:?} is taken"));
        assert!(error.to_string().contains(line) && !error.to_string().contains(SECRET), "{error}");
    }
}

/// The same by another way: a dictionary of dictionaries, without continued lines.
fn naively(text: &str) -> BTreeMap<String, BTreeMap<String, String>> {
    let (mut found, mut at) = (BTreeMap::<String, BTreeMap<String, String>>::new(), String::new());
    for line in text.split('\n') {
        if line.trim().is_empty() || line.trim().starts_with('#') || line.trim().starts_with(';') {
            continue;
        }
        if line.starts_with('[') {
            at = line[1..line.find(']').unwrap()].trim().to_owned();
            found.entry(at.clone()).or_default();
        } else {
            let equals = line.find('=').unwrap();
            found
                .get_mut(&at)
                .unwrap()
                .insert(line[..equals].trim().to_lowercase(), line[equals + 1..].trim().to_owned());
        }
    }
    found
}

proptest! {
    #[test]
    fn plain_files_read_as_their_definition_says(
        sections in prop::collection::vec(("[a-z]{1,4}", prop::collection::vec(("[A-Za-z_]{1,6}", "[!-~]{0,9}"), 0..5)), 0..6),
    ) {
        let mut text = String::new();
        for (name, values) in &sections {
            text += &format!("[ {name} ]\n# a comment\n");
            values.iter().for_each(|(key, value)| text += &format!("{key} = {value}\n\n"));
        }
        let found = files("", &text).unwrap();
        prop_assert_eq!(found.profiles, naively(&text));
    }

    #[test]
    fn any_text_is_refused_with_its_line_or_read(text in "(\\[|\\]|=|#|;| |\n|\t|profile |default|sso-session |s3|[a-c]){0,60}") {
        for kind in [Kind::Config, Kind::Credentials] {
            let mut read = Profiles::default();
            if let Err(e) = read.add(&text, kind, "file") {
                prop_assert!(e.to_string().contains("file, line "), "{}", e);
            }
            let _ = decided(&read, &[("AWS_PROFILE", "a")], &[]);
        }
    }

    #[test]
    fn any_answer_is_taken_apart_or_none(bytes in prop::collection::vec(any::<u8>(), 0..200), cut in 0usize..400) {
        let good = good_answers();
        for answer in good.iter().map(|answer| answer.get(..cut.min(answer.len())).unwrap_or_default()).chain([&bytes[..]]) {
            for lent in [of_process(answer), of_role(answer), of_session(answer)].into_iter().flatten() {
                prop_assert!(!lent.keys.key_id.is_empty() && !lent.keys.secret_key.is_empty());
            }
            let _ = of_login(answer);
        }
    }
}

fn good_answers() -> [Vec<u8>; 4] {
    [
        r#"{"Version": 1, "AccessKeyId": "A", "SecretAccessKey": "S3CRET", "SessionToken": "t", "Expiration": "2099-01-02T03:04:05Z"}"#.into(),
        r#"<?xml version="1.0"?><AssumeRoleResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><AssumeRoleResult><AssumedRoleUser><Arn>a</Arn></AssumedRoleUser><Credentials><AccessKeyId>A</AccessKeyId><SecretAccessKey>S3CRET+/=</SecretAccessKey><SessionToken>t</SessionToken><Expiration>2099-01-02T03:04:05.000Z</Expiration></Credentials></AssumeRoleResult><ResponseMetadata><RequestId>r</RequestId></ResponseMetadata></AssumeRoleResponse>"#.into(),
        r#"{"roleCredentials": {"accessKeyId": "A", "secretAccessKey": "S3CRET", "sessionToken": "t", "expiration": 4071006245000}}"#.into(),
        r#"{"startUrl": "https://x", "region": "r", "accessToken": "tok", "expiresAt": "2099-01-02T03:04:05UTC"}"#.into(),
    ]
}

#[test]
fn answers_are_taken_apart_to_the_letter() {
    let [process, role, session, login] = good_answers();
    for (lent, secret) in
        [(of_process(&process), "S3CRET"), (of_role(&role), "S3CRET+/="), (of_session(&session), "S3CRET")]
    {
        let Lent { keys, until } = lent.unwrap();
        assert_eq!((keys.key_id.as_str(), keys.secret_key.as_str(), keys.token.as_deref()), ("A", secret, Some("t")));
        assert_eq!(until.unwrap().to_rfc3339(), "2099-01-02T03:04:05+00:00");
    }
    assert_eq!(
        of_login(&login).map(|(token, until)| (token, until.timestamp())),
        Some(("tok".to_owned(), 4_071_006_245))
    );
    // No end: they do not end. Another version, a broken time or a key that no header takes: not these.
    assert!(of_process(br#"{"Version": 1, "AccessKeyId": "A", "SecretAccessKey": "S"}"#).unwrap().until.is_none());
    for bad in [
        r#"{"Version": 2, "AccessKeyId": "A", "SecretAccessKey": "S"}"#,
        r#"{"Version": 1, "AccessKeyId": "", "SecretAccessKey": "S"}"#,
        r#"{"Version": 1, "AccessKeyId": "A\nB", "SecretAccessKey": "S"}"#,
        r#"{"Version": 1, "AccessKeyId": "A", "SecretAccessKey": "S", "Expiration": "soon"}"#,
    ] {
        assert!(of_process(bad.as_bytes()).is_none(), "{bad}");
    }
}

#[test]
fn a_command_that_fails_hangs_or_talks_too_much_is_ended() {
    let (long, short) = (Duration::from_secs(60), Duration::from_millis(300));
    assert_eq!(process::answer("printf '%s' 'a b'", long).unwrap(), b"a b");
    for (command, limit, words) in [
        ("echo S3CRET; exit 3", long, "failed (exit status: 3)"),
        ("no-such-command-anywhere 2>/dev/null", long, "failed (exit status: 127)"),
        ("sleep 60", short, "did not end within 300ms"),
        // What it started holds its output open.
        ("sleep 60 & echo S3CRET", short, "within 300ms"),
    ] {
        let why = process::answer(command, limit).unwrap_err();
        assert!(why.contains(words) && !why.contains(SECRET), "{command}: {why}");
    }
    let endless = process::answer("yes S3CRET", long).unwrap_err();
    assert!(endless.contains("printed more than 65536 bytes"), "{endless}");
}

fn ways() -> Ways {
    let (sts, sso, region, metadata_endpoint, logins) = (None, None, None, None, None);
    Ways { sts, sso, region, metadata_endpoint, logins, process_limit: Duration::from_secs(60) }
}

/// A provider whose command counts its runs in a file and prints credentials that end at `until`.
fn counted(dir: &std::path::Path, until: &str) -> (Arc<Provider>, impl Fn() -> usize + use<>) {
    let runs = dir.join("runs");
    let count = runs.clone();
    let answer = format!(
        r#"{{"Version": 1, "AccessKeyId": "A", "SecretAccessKey": "S3CRET", "SessionToken": "S3CRET", "Expiration": "{until}"}}"#
    );
    let command = format!("echo run >> {}; echo '{answer}'; test ! -e {}/fail", runs.display(), dir.display());
    let runs = move || std::fs::read_to_string(&count).map_or(0, |text| text.lines().count());
    (Arc::new(Provider::new(Plan::Process(command), ways())), runs)
}

/// A time so many seconds from now.
fn from_now(seconds: i64) -> String {
    let now = chrono::DateTime::<chrono::Utc>::from(std::time::SystemTime::now());
    (now + chrono::TimeDelta::seconds(seconds)).to_rfc3339()
}

#[test]
fn credentials_are_fetched_once_for_all_who_wait() {
    let dir = tempfile::tempdir().unwrap();
    let (provider, runs) = counted(dir.path(), &from_now(3600));
    let asked: Vec<_> = (0..32).map(|_| provider.clone()).collect();
    let found = runtime::shared().unwrap().block_on(async {
        let tasks: Vec<_> =
            asked.into_iter().map(|p| tokio::spawn(async move { p.get_credential().await.unwrap() })).collect();
        futures::future::join_all(tasks).await
    });
    assert!(found.iter().all(|keys| keys.as_ref().unwrap().key_id == "A") && runs() == 1, "{} runs", runs());
    let shown = format!("{provider:?} {:?}", found[0].as_ref().unwrap());
    assert!(!shown.contains(SECRET), "{shown}");
}

#[test]
fn credentials_are_fetched_anew_before_they_end_and_the_old_ones_serve_where_that_fails() {
    let runtime = runtime::shared().unwrap();
    let ask = |provider: &Provider| runtime.block_on(provider.get_credential());
    let dir = tempfile::tempdir().unwrap();
    let (provider, runs) = counted(dir.path(), &from_now(3600));
    ask(&provider).unwrap();
    ask(&provider).unwrap();
    assert_eq!(runs(), 1);
    let now = chrono::DateTime::<chrono::Utc>::from(std::time::SystemTime::now());
    provider.0.kept.lock().due = Some(now);
    ask(&provider).unwrap();
    assert_eq!(runs(), 2, "due");
    std::fs::write(dir.path().join("fail"), "").unwrap();
    provider.0.kept.lock().due = Some(now);
    ask(&provider).unwrap();
    ask(&provider).unwrap();
    assert_eq!(runs(), 3, "the old ones serve, and nobody asks again at once");
    provider.0.kept.lock().until = Some(now);
    let told = ask(&provider).unwrap_err().to_string();
    assert!(told.contains("credential_process failed") && !told.contains(SECRET), "{told}");
    assert_eq!(runs(), 4, "they have ended");
    // What ends before it begins is told.
    let other = tempfile::tempdir().unwrap();
    let (late, _) = counted(other.path(), &from_now(-5));
    let told = ask(&late).unwrap_err().to_string();
    assert!(told.contains("clock") && !told.contains(SECRET), "{told}");
}
