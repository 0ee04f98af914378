//! Addresses as they may be shown.

/// `text` without what its addresses carry in secret: `https://user:password@host/path?signature` becomes
/// `https://***@host/path?***`. What stands before an at sign without a colon is a name where the scheme is no http's,
/// as in `abfs://container@account.host`. An address of the web that lacks a slash counts as one.
pub fn without_secrets(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(":/") {
        let whole = rest.get(at..).is_some_and(|rest| rest.starts_with("://"));
        let (before, after) = rest.split_at(at + if whole { 3 } else { 2 });
        out.push_str(before);
        let scheme =
            before.trim_end_matches([':', '/']).rsplit(|c: char| !c.is_ascii_alphanumeric()).next().unwrap_or("");
        if !whole && !scheme.to_ascii_lowercase().starts_with("http") {
            rest = after;
            continue;
        }
        let end = after.find(|c: char| c.is_whitespace() || matches!(c, '"' | '\'' | '<' | '>')).unwrap_or(after.len());
        let (address, others) = after.split_at(end);
        let (address, secret) = address.split_once('?').map_or((address, ""), |(address, _)| (address, "?***"));
        // A password may have an at sign itself, and a slash: then what stands after the colon is no port.
        let host = address.split('/').next().unwrap_or(address);
        let is_port = |text: &str| text.chars().all(|c| c.is_ascii_digit());
        let within = match host.rsplit_once(':') {
            Some((_, port)) if !host.contains('@') && !is_port(port) => address,
            _ => host,
        };
        match within.rsplit_once('@') {
            Some((login, host)) if scheme.to_ascii_lowercase().starts_with("http") || login.contains(':') => {
                out.extend(["***@", host, address.get(within.len()..).unwrap_or("")]);
            }
            _ => out.push_str(address),
        }
        out.push_str(secret);
        rest = others;
    }
    out + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_shown_without_logins_and_queries() {
        for (given, shown) in [
            ("no address", "no address"),
            ("https://me:pw@h/a.tar?sig=1 and s3://b/k@x", "https://***@h/a.tar?*** and s3://b/k@x"),
            ("https:/me:pw@h/a.tar?sig=1, not c:/me:x@y", "https:/***@h/a.tar?*** not c:/me:x@y"),
            ("HTTPS://token@h/a", "HTTPS://***@h/a"),
            ("https://me:p/w@h:1/a", "https://***@h:1/a"),
            ("https://me:p@w@h/a@b", "https://***@h/a@b"),
            ("s3://key:secret@b/k", "s3://***@b/k"),
            ("abfs://c@a.dfs.core.windows.net/k?sig=1", "abfs://c@a.dfs.core.windows.net/k?***"),
            ("hf://datasets/o/n@main/x", "hf://datasets/o/n@main/x"),
            ("(\"http://h:8080/a@b\")", "(\"http://h:8080/a@b\")"),
        ] {
            assert_eq!(without_secrets(given), shown);
        }
    }
}
