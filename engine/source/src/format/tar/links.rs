//! Links of an archive: what they lead to within it, as Python's tarfile follows them.

use std::collections::HashMap;

use super::Member;

/// Links that lead to links are followed so far.
const DEPTH_MAX: usize = 40;

/// A link, with the names that [`super::plain`] gives.
pub(super) struct Link {
    pub(super) name: String,
    /// `None` leads out of the archive.
    pub(super) target: Option<String>,
    /// It leads to a member before it.
    pub(super) hard: bool,
    /// Where its header lies.
    pub(super) at: u64,
}

/// What a name stands for.
enum Node<'a> {
    File(&'a Member),
    Link(&'a Link),
}

/// Members by their names, in the order in which they lie.
pub(super) struct Names<'a>(HashMap<&'a str, Vec<(u64, Node<'a>)>>);

impl<'a> Names<'a> {
    pub(super) fn new(members: impl Iterator<Item = &'a Member>, links: &'a [Link]) -> Self {
        let mut names: HashMap<&str, Vec<(u64, Node<'_>)>> = HashMap::new();
        for member in members {
            names.entry(&member.name).or_default().push((member.offset, Node::File(member)));
        }
        for link in links {
            names.entry(&link.name).or_default().push((link.at, Node::Link(link)));
        }
        names.values_mut().for_each(|nodes| nodes.sort_by_key(|(at, _)| *at));
        Self(names)
    }

    /// The file that a link leads to.
    pub(super) fn file(&self, link: &Link) -> Option<&'a Member> {
        let mut link = link;
        for _ in 0..DEPTH_MAX {
            let nodes = self.0.get(link.target.as_deref()?)?;
            let (_, node) = nodes.iter().rfind(|(at, _)| !link.hard || *at < link.at)?;
            match node {
                Node::File(member) => return Some(member),
                Node::Link(next) => link = next,
            }
        }
        None
    }
}
