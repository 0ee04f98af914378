//! What samples are made of, where that is more than an image and its label.

use crate::decode::is_ending;
use crate::error::{Error, Result};
use crate::types::Dtype;

/// A part of every sample, by its name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Piece {
    /// What the part is called: a member's or a column's name.
    pub name: String,
    /// What it becomes in a batch.
    pub kind: PieceKind,
}

/// What a part of a sample becomes. All but the first two lie in the sample's tail, in the order of the parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PieceKind {
    /// Pixels.
    Picture,
    /// The target.
    Label,
    /// UTF-8.
    Text,
    /// A JSON document.
    Json,
    /// An array in NumPy's format.
    Npy,
    /// Bytes as they are.
    Bytes,
    /// A number of this type.
    Number(Dtype),
    /// As many numbers of this type as there are.
    Numbers(Dtype),
}

impl PieceKind {
    /// Whether it lies in the tail.
    pub fn in_tail(self) -> bool {
        !matches!(self, Self::Picture | Self::Label)
    }

    /// What Python calls it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Picture => "picture",
            Self::Label => "label",
            Self::Text => "text",
            Self::Json => "json",
            Self::Npy => "npy",
            Self::Bytes => "bytes",
            Self::Number(_) => "number",
            Self::Numbers(_) => "numbers",
        }
    }

    /// The type of its numbers, if it is made of some.
    pub fn dtype(self) -> Option<Dtype> {
        match self {
            Self::Number(dtype) | Self::Numbers(dtype) => Some(dtype),
            _ => None,
        }
    }

    /// What the members of a shard hold whose names end so.
    pub fn of_member(name: &str) -> Self {
        match name.rsplit('.').next().unwrap_or(name).to_ascii_lowercase().as_str() {
            "cls" => Self::Label,
            "json" => Self::Json,
            "txt" | "text" | "transcript" => Self::Text,
            "npy" => Self::Npy,
            ending if is_ending(ending) => Self::Picture,
            _ => Self::Bytes,
        }
    }
}

impl Piece {
    /// What the members `fields` of a shard's samples become. Each is named by what follows its key's dot, with
    /// alternatives between semicolons (`"jpg;png"`). The first of pictures is decoded; others stay encoded. The first
    /// that ends in `cls` is the target; others are bytes.
    ///
    /// # Errors
    /// `Settings` for a name that is none, or comes twice, for alternatives of several kinds, and where nothing but a
    /// class number is left.
    pub fn of_members(fields: &[String]) -> Result<Vec<Self>> {
        let (mut pieces, mut seen, mut picture, mut label) = (Vec::new(), Vec::new(), false, false);
        for field in fields {
            let mut kind = None;
            for name in field.split(';') {
                let plain = !name.is_empty() && !name.contains(['/', ' ']) && !name.starts_with('.');
                let fits = *kind.get_or_insert(PieceKind::of_member(name)) == PieceKind::of_member(name);
                if !plain || seen.contains(&name) || !fits {
                    return Err(Error::settings(format!(
                        "fields: {field:?} {}: give what follows the dot of a member's name, as in \"jpg;png\", \"cls\", \"json\"",
                        match (plain, fits) {
                            (false, _) => "is no member's name",
                            (_, false) => "has alternatives that are not of one kind",
                            _ => "names a member twice",
                        }
                    )));
                }
                seen.push(name);
            }
            let kind = match kind.unwrap_or(PieceKind::Bytes) {
                PieceKind::Picture if picture => PieceKind::Bytes,
                PieceKind::Label if label => PieceKind::Bytes,
                kind => kind,
            };
            picture |= kind == PieceKind::Picture;
            label |= kind == PieceKind::Label;
            pieces.push(Self { name: field.clone(), kind });
        }
        if pieces.iter().all(|piece| piece.kind == PieceKind::Label) {
            return Err(Error::settings("fields: name a member beside the class number, such as \"jpg\" or \"txt\""));
        }
        Ok(pieces)
    }
}
