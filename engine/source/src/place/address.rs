//! The parts of a URL that nobody may be told: user and password, and the query, which may sign it. They are taken off
//! before anything else looks at it.

use percent_encoding::percent_decode_str;
use sha2::{Digest, Sha256};

use crate::error::{Error, Result};

/// A URL apart from the user and password in it, and from its query.
pub(crate) struct Address {
    pub(crate) url: String,
    pub(crate) login: Option<Login>,
    pub(crate) query: Option<String>,
}

/// User and password. Prints as nothing: neither may be told.
pub(crate) struct Login {
    pub(crate) user: String,
    pub(crate) password: String,
}

impl Address {
    /// A URL as people give it. Of a web server's URL what follows a question mark is its query.
    ///
    /// # Errors
    /// `Settings` for a query or fragment where none can be.
    pub(crate) fn of_data(url: &str) -> Result<Self> {
        let mut address = Self::of(url);
        let web = ["http://", "https://"]
            .iter()
            .any(|scheme| address.url.trim_start().to_ascii_lowercase().starts_with(scheme));
        if web && let Some((before, query)) = address.url.split_once('?') {
            let query = query.split('#').next().unwrap_or(query);
            address.query = (!query.is_empty()).then(|| query.to_owned());
            if address.url.contains('#') {
                return Err(without(before, "a fragment"));
            }
            address.url = before.to_owned();
        }
        if address.url.contains(['?', '#']) {
            return Err(without(without_query(&address.url), "a query or fragment"));
        }
        Ok(address)
    }

    /// In `abfs://container@account.host` the part before @ is a name and no secret; a password has a colon before it.
    pub(crate) fn of(url: &str) -> Self {
        let whole = || Self { url: url.to_owned(), login: None, query: None };
        let Some((scheme, rest)) = url.split_once("://") else { return whole() };
        let web = scheme.trim_start().to_ascii_lowercase().starts_with("http");
        let host = rest.split(['/', '?', '#']).next().unwrap_or(rest);
        // A password with a slash in it ends the host too early: then what follows "user:" is no port.
        let broken = !host.contains('@')
            && rest.contains('@')
            && host.rsplit_once(':').is_some_and(|(_, port)| !port.chars().all(|c| c.is_ascii_digit()));
        let Some((login, after)) = (if broken { rest } else { host }).rsplit_once('@') else { return whole() };
        let (user, password) = login.split_once(':').unwrap_or((login, ""));
        if !web && !login.contains(':') {
            return whole();
        }
        let path = if broken { "" } else { rest.get(host.len()..).unwrap_or("") };
        let decoded = |text: &str| percent_decode_str(text).decode_utf8_lossy().into_owned();
        Self {
            url: format!("{scheme}://{after}{path}"),
            login: Some(Login { user: decoded(user), password: decoded(password) }),
            query: None,
        }
    }
}

fn without(url: &str, what: &str) -> Error {
    Error::settings(format!(
        "{url} has {what}, which shards and folders cannot use: pass credentials as store options or in the environment; \
         only http(s) URLs may be signed by a query"
    ))
}

/// The URL without query and fragment: there may be a signature in them.
pub(crate) fn without_query(url: &str) -> &str {
    url.split(['?', '#']).next().unwrap_or(url)
}

/// What signs a query: a name that shows it, and the others that then belong to the signature and say nothing of what is
/// asked for. S3's older kind, Google's and CloudFront's; Azure's shared access signatures. Each lower case.
const SIGNED_BY: [(&str, &[&str]); 2] =
    [("signature", &["awsaccesskeyid", "expires", "googleaccessid", "key-pair-id", "policy"]), ("sig", AZURES)];
#[rustfmt::skip]
const AZURES: &[&str] = &[
    "se", "si", "sip", "ske", "skoid", "sks", "skt", "sktid", "skv", "sp", "spr", "sr", "srt", "ss", "st", "sv", "sdd",
    "saoid", "suoid", "scid",
];

/// What a query says of the object beside signing it, as a digest: `get?id=1` and `get?id=2` are two objects. `None`
/// where it only signs. Another signature of one object gives the same.
pub(crate) fn identity(query: &str) -> Option<String> {
    let parts = || query.split('&').filter(|part| !part.is_empty());
    let name = |part: &str| part.split('=').next().unwrap_or(part).to_ascii_lowercase();
    let shown = SIGNED_BY.map(|(by, names)| (by, if parts().any(|part| name(part) == by) { names } else { &[] }));
    let signs = |name: &str| {
        let of_some = shown.iter().any(|(by, names)| name == *by || names.contains(&name));
        of_some || name.starts_with("x-amz-") || name.starts_with("x-goog-")
    };
    let mut said: Vec<&str> = parts().filter(|part| !signs(&name(part))).collect();
    said.sort_unstable();
    if said.is_empty() {
        return None;
    }
    let digest = Sha256::digest(said.join("&").as_bytes());
    Some(digest.iter().take(16).map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_is_taken_off_and_another_signature_is_the_same_object() {
        let of = |url: &str| Address::of_data(url).map(|a| (a.url, a.query.unwrap_or_default()));
        let signed = "https://b.s3.amazonaws.com/a b/x.tar?X-Amz-Signature=abc&X-Amz-Date=1@2:3/4";
        assert_eq!(
            of(signed).unwrap(),
            ("https://b.s3.amazonaws.com/a b/x.tar".into(), "X-Amz-Signature=abc&X-Amz-Date=1@2:3/4".into())
        );
        assert_eq!(of("http://h/x.tar?").unwrap(), ("http://h/x.tar".into(), String::new()));
        for url in [
            "s3://b/x.tar?versionId=secret",
            "https://h/x.tar?sig=secret#part",
            "https://h/x.tar#secret",
            "az://c/x?sig=secret",
        ] {
            let told = of(url).unwrap_err().to_string();
            assert!(told.contains("fragment") && !told.contains("secret"), "{told}");
        }
        for (one, other) in [
            ("X-Amz-Signature=a&X-Amz-Expires=1", "x-amz-expires=2&X-Amz-Signature=b"),
            ("sv=2020&se=1&sr=b&sp=r&sig=x%3D", "sig=y&se=2"),
            ("Expires=1&Signature=a&Key-Pair-Id=K", "Policy=p&Signature=b&Key-Pair-Id=K"),
            ("versionId=7&X-Goog-Signature=a", "X-Goog-Signature=b&versionId=7"),
            ("a=1&b=2", "b=2&a=1"),
        ] {
            assert_eq!(identity(one), identity(other), "{one} {other}");
        }
        assert_eq!(identity("sig=x&&se=1"), None);
        let of_objects: std::collections::BTreeSet<_> =
            ["id=1", "id=2", "id=1&v=2", "signature2=1", "sr=1", "sr=2"].map(identity).into();
        assert_eq!(of_objects.len(), 6);
        assert!(of_objects.iter().flatten().all(|digest| digest.len() == 32 && !digest.contains("id")));
    }
}
