//! Truths about the pages of listings: what the stores' clients do not look at.

use object_store::path::Path;

use crate::request::pages::Pages;

fn page(truncated: Option<&str>, token: Option<&str>, keys: &[&str]) -> Vec<u8> {
    let truncated = truncated.map_or(String::new(), |said| format!("<IsTruncated>{said}</IsTruncated>"));
    let token = token.map_or(String::new(), |t| format!("<NextContinuationToken>{t}</NextContinuationToken>"));
    let contents: String =
        keys.iter().map(|key| format!("<Contents><Key>{key}</Key><Size>1</Size></Contents>")).collect();
    format!("<?xml version=\"1.0\"?><ListBucketResult>{truncated}{contents}{token}</ListBucketResult>").into_bytes()
}

/// What comes of pages that answer one listing: the last one as the client has it, or the refusal.
fn listed(pages: &[Vec<u8>]) -> Result<String, String> {
    let (mut state, mut last) = (Pages::default(), Vec::new());
    for page in pages {
        last = state.page(page.clone()).map_err(|e| e.to_string())?;
    }
    Ok(String::from_utf8(last).unwrap())
}

#[test]
fn a_listing_that_goes_on_without_a_new_token_is_refused() {
    let more = |token| page(Some("true"), token, &["a"]);
    for token in [None, Some("")] {
        assert!(listed(&[more(token)]).unwrap_err().contains("page 1 of it says that more follow"), "{token:?}");
        assert!(listed(&[more(Some("x")), more(token)]).unwrap_err().contains("page 2"), "{token:?}");
    }
    for tokens in [&["x", "x"][..], &["x", "y", "y"], &["x", "y", "x"], &["x", "y", "z", "x"]] {
        let pages: Vec<_> = tokens.iter().map(|token| page(Some("true"), Some(token), &[])).collect();
        assert!(listed(&pages).unwrap_err().contains("it would never end"), "{tokens:?}");
    }
    // A token without a word beside it is followed, as Azure means it.
    let azure = |marker| {
        format!("<EnumerationResults><Blobs><Blob><Name>a</Name></Blob></Blobs><NextMarker>{marker}</NextMarker></EnumerationResults>")
            .into_bytes()
    };
    assert!(listed(&[azure("x"), azure("y"), azure("")]).is_ok());
    assert!(listed(&[azure("x"), azure("y"), azure("x")]).unwrap_err().contains("page 3"));
    // A listing that is over may be asked for again.
    assert!(listed(&[more(Some("x")), page(Some("false"), None, &[]), more(Some("x"))]).is_ok());
}

#[test]
fn a_token_of_a_listing_that_has_ended_is_not_followed() {
    let last = listed(&[page(Some("false"), Some("again"), &["a", "b"])]).unwrap();
    assert!(
        !last.contains("again") && last.contains("<Key>a</Key>") && last.ends_with("</ListBucketResult>"),
        "{last}"
    );
    let sound = page(Some("true"), Some("next"), &["a"]);
    assert_eq!(listed(std::slice::from_ref(&sound)).unwrap().into_bytes(), sound, "a sound page is left as it is");
}

#[test]
fn names_that_no_path_takes_are_cut_out_and_the_rest_stays() {
    let kept = ["d/a.png", "d/&amp;&lt;&#233;.png", "d/e.png"];
    let odd = ["d//b.png", "/d/c.png", "d/./c.png", "d/../c.png", "d/x.png/", "d/f/", "d/&#9;.png"];
    let keys: Vec<&str> = kept.iter().zip(&odd).flat_map(|(a, b)| [*a, *b]).chain(odd[3..].iter().copied()).collect();
    let mut state = Pages::default();
    let page = String::from_utf8(state.page(page(Some("true"), Some("x"), &keys)).unwrap()).unwrap();
    let wanted: String =
        kept.iter().map(|key| format!("<Contents><Key>{key}</Key><Size>1</Size></Contents>")).collect();
    assert!(page.contains(&format!("<IsTruncated>true</IsTruncated>{wanted}<NextCont")), "{page}");
    for key in ["", "a", "a b/ü.png", "a/%2e%2e/b", "a~b"] {
        assert!(state.takes(key) && Path::parse(key).unwrap().as_ref() == key, "{key}");
    }
    for key in ["//", "a//b", "./a", "a/..", "a\nb", "/a", "a.png/"] {
        assert!(!state.takes(key), "{key}");
    }
}

#[test]
fn what_is_no_page_is_left_to_the_client() {
    for body in [&b""[..], b"<html>", b"{}", b"\xff", b"<ListBucketResult><Contents><Key>a//b</Key>"] {
        assert_eq!(Pages::default().page(body.to_vec()).unwrap(), body);
    }
}
