//! The numbers of a page that somebody else has written: by name, whatever names it has.

use super::counters::current_name;

/// Names and numbers, in the order of their page.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Numbers(Vec<(String, u64)>);

impl Numbers {
    pub(super) fn new<'a>(numbers: impl Iterator<Item = (&'a str, u64)>) -> Self {
        Self(numbers.map(|(name, value)| (name.to_owned(), value)).collect())
    }

    /// The number of that name, or of that former name; `None` if the page does not have it.
    pub fn get(&self, name: &str) -> Option<u64> {
        let of = |wanted: &str| self.0.iter().find(|(n, _)| n == wanted).map(|&(_, value)| value);
        of(name).or_else(|| of(current_name(name)))
    }

    /// Names and numbers.
    pub fn iter(&self) -> impl Iterator<Item = (&str, u64)> {
        self.0.iter().map(|(name, value)| (name.as_str(), *value))
    }
}
