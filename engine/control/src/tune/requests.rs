//! Reasons for which the number of requests in flight ahead of need changes.

reasons! {
    /// Why the number of requests in flight ahead of need changed.
    Requests {
        MayBeFewer: "fewer may bring as much";
        AsMuch: "fewer bring as much";
        Less: "fewer bring less";
        NoMore: "more bring nothing";
        Follows: "the rate grows with them";
        Smaller: "requests became smaller";
        Larger: "requests became larger";
        Faster: "the rate rose";
        Slower: "the rate fell";
        Later: "responses take longer at the same rate";
        Sooner: "responses come sooner";
        MayBeMore: "more may bring more";
        Slow: "file reads are slow";
        Quick: "file reads are fast";
    }
}

#[cfg(test)]
mod tests {
    use super::super::lead;
    use super::*;

    #[test]
    fn every_reason_has_a_number_and_words_of_its_own() {
        let requests: Vec<(u64, &str)> = Requests::ALL.iter().map(|why| (why.code(), why.words())).collect();
        assert_eq!(requests.iter().map(|(code, _)| *code).collect::<Vec<_>>(), (1..=14).collect::<Vec<_>>());
        for (code, words) in requests {
            assert_eq!(Requests::of_code(code).map(Requests::words), Some(words));
            assert!(!words.contains(':') && words.len() < 60);
        }
        assert_eq!((Requests::of_code(0), Requests::of_code(15)), (None, None));
        assert_eq!([1, 2].map(lead::Why::of_code), [Some(lead::Why::Late), Some(lead::Why::Enough)]);
        assert_eq!([0, 3].map(lead::Why::of_code), [None, None]);
    }
}
