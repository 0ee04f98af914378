//! What the columns of a Parquet file become: a decision about its schema, without effects.
//!
//! Datasets of Hugging Face say it themselves, in the file's metadata: which columns are images or class labels, and
//! what the classes are called. Without that, names and types tell.

use parquet::basic::{ConvertedType, LogicalType, Repetition, Type as Physical};
use parquet::file::metadata::FileMetaData;
use parquet::schema::types::{ColumnDescPtr, ColumnDescriptor, Type};
use serde::Deserialize;
use std::collections::HashMap;

use crate::decode::is_ending;
use crate::error::{Error, Result};
use crate::sample::{Piece, PieceKind};
use crate::types::Dtype;

/// Names of columns of bytes that are pictures, beside those that are the ending of a picture's file.
const PICTURES: [&str; 3] = ["image", "img", "picture"];
/// Names of columns of whole numbers that are targets.
const LABELS: [&str; 8] = ["labels", "label", "target", "targets", "y", "cls", "class", "fine_label"];

/// A column that is delivered.
#[derive(Debug, Clone)]
pub(super) struct Column {
    pub(super) name: String,
    pub(super) kind: PieceKind,
    /// Among the file's leaves.
    pub(super) leaf: usize,
    pub(super) descr: ColumnDescPtr,
    /// Definition level of a list without elements: one below it is null.
    pub(super) empty: i16,
}

/// What samples are made of.
#[derive(Debug, Clone)]
pub(super) struct Schema {
    /// The picture, if there is one, then what lies in the tail.
    pub(super) kept: Vec<Column>,
    pub(super) label: Option<Column>,
    pub(super) pieces: Vec<Piece>,
    pub(super) classes: Vec<String>,
}

/// Hugging Face's description of a dataset.
#[derive(Debug, Default, Deserialize)]
struct Described {
    #[serde(default)]
    info: Info,
}

#[derive(Debug, Default, Deserialize)]
struct Info {
    #[serde(default)]
    features: HashMap<String, serde_json::Value>,
}

/// One column's feature there: its type, and what classes are called.
struct Feature {
    is: String,
    names: Vec<String>,
}

impl Info {
    fn feature(&self, name: &str) -> Option<Feature> {
        let feature = self.features.get(name)?;
        let names = feature.get("names").and_then(|names| names.as_array());
        let names = names.into_iter().flatten().filter_map(|name| name.as_str().map(str::to_owned)).collect();
        Some(Feature { is: feature.get("_type")?.as_str()?.to_owned(), names })
    }
}

impl Schema {
    /// Of the columns `fields`, or of all; then a picture and a class label are a pair by themselves.
    ///
    /// # Errors
    /// `Settings` for columns that are not there, come twice, or cannot be delivered, with those that can.
    pub(super) fn of(file: &FileMetaData, fields: &[String], what: &str) -> Result<Self> {
        let described = described(file);
        let leaves: Vec<(usize, ColumnDescPtr)> = file.schema_descr().columns().iter().cloned().enumerate().collect();
        let root = file.schema_descr().root_schema();
        let names: Vec<&str> = root.get_fields().iter().map(|field| field.name()).collect();
        let columns: Vec<(&str, Option<Column>)> =
            names.iter().map(|&name| (name, column(name, &leaves, root, &described))).collect();
        let known = || {
            let known: Vec<&str> =
                columns.iter().filter(|(_, column)| column.is_some()).map(|(name, _)| *name).collect();
            known.join(", ")
        };
        let mut chosen: Vec<Column> = Vec::new();
        for name in fields {
            if chosen.iter().any(|column| column.name == *name) {
                return Err(Error::settings(format!("fields: column {name:?} comes twice")));
            }
            match columns.iter().find(|(column, _)| column == name) {
                Some((_, Some(column))) => chosen.push(column.clone()),
                found => {
                    let why = if found.is_some() { "is of a type that no batch has" } else { "is not there" };
                    return Err(Error::settings(format!(
                        "fields: column {name:?} of {what} {why}; it has {}",
                        known()
                    )));
                }
            }
        }
        if fields.is_empty() {
            if let Some((name, _)) = columns.iter().find(|(_, column)| column.is_none()) {
                return Err(Error::settings(format!(
                    "column {name:?} of {what} is of a type that no batch has: name the columns you want with fields=, of {}",
                    known()
                )));
            }
            chosen = columns.into_iter().filter_map(|(_, column)| column).collect();
        }
        let label = label(&chosen, &described);
        if fields.is_empty()
            && let Some(label) = label
            && let [picture] = of_kind(&chosen, PieceKind::Picture).as_slice()
        {
            chosen = vec![chosen[*picture].clone(), chosen[label].clone()];
        }
        Self::chosen(chosen, &described, what)
    }

    fn chosen(mut columns: Vec<Column>, described: &Info, what: &str) -> Result<Self> {
        // The first picture is decoded.
        of_kind(&columns, PieceKind::Picture).into_iter().skip(1).for_each(|at| columns[at].kind = PieceKind::Bytes);
        let label = label(&columns, described);
        if let Some(label) = label {
            columns[label].kind = PieceKind::Label;
        }
        let pieces = columns.iter().map(|c| Piece { name: c.name.clone(), kind: c.kind }).collect();
        let (labels, mut kept): (Vec<_>, Vec<_>) = columns.into_iter().partition(|c| c.kind == PieceKind::Label);
        if kept.is_empty() {
            return Err(Error::settings(format!(
                "{what} has nothing to deliver beside a class number: name columns with fields="
            )));
        }
        kept.sort_by_key(|column| column.kind != PieceKind::Picture);
        let label = labels.into_iter().next();
        let classes =
            label.as_ref().and_then(|label| described.feature(&label.name)).map(|f| f.names).unwrap_or_default();
        Ok(Self { kept, label, pieces, classes })
    }

    /// How another file's columns are not these. Their order, and whether they have nulls, make no difference.
    pub(super) fn difference(&self, other: &Self) -> Option<String> {
        let find = |name: &str, of: &Self| of.pieces.iter().find(|piece| piece.name == name).map(|piece| piece.kind);
        for Piece { name, kind } in &self.pieces {
            match find(name, other) {
                Some(found) if found == *kind => {}
                Some(found) => {
                    return Some(format!("column {name:?} is {} there and {} here", said(found), said(*kind)));
                }
                None => return Some(format!("column {name:?} is not there")),
            }
        }
        let more = other.pieces.iter().find(|piece| find(&piece.name, self).is_none())?;
        Some(format!("column {:?} is there alone", more.name))
    }
}

fn said(kind: PieceKind) -> String {
    match kind.dtype() {
        Some(dtype) => format!("{} ({})", kind.name(), dtype.name()),
        None => kind.name().to_owned(),
    }
}

/// What the classes of all files are called; each is given with its name. A file that does not say it has the others'
/// classes: its numbers are of the same column, and nothing contradicts them.
///
/// # Errors
/// `Settings` for two files that say different things.
pub(super) fn classes<'a>(files: impl IntoIterator<Item = (&'a str, &'a Schema)>) -> Result<Vec<String>> {
    let mut said =
        files.into_iter().map(|(file, schema)| (file, &schema.classes)).filter(|(_, names)| !names.is_empty());
    let Some((first, names)) = said.next() else { return Ok(Vec::new()) };
    let Some((other, others)) = said.find(|(_, others)| *others != names) else { return Ok(names.clone()) };
    let at = names.iter().zip(others).take_while(|(a, b)| a == b).count();
    let called = |names: &[String]| names.get(at).map_or("nothing".to_owned(), |name| format!("{name:?}"));
    Err(Error::settings(format!(
        "{other} calls class {at} {} and {first} calls it {} ({} and {} classes): a label would mean two things; open them apart, or write \
         them with one list of classes",
        called(others),
        called(names),
        others.len(),
        names.len()
    )))
}

fn of_kind(columns: &[Column], kind: PieceKind) -> Vec<usize> {
    (0..columns.len()).filter(|&at| columns[at].kind == kind).collect()
}

fn described(file: &FileMetaData) -> Info {
    let text = file.key_value_metadata().into_iter().flatten().find(|pair| pair.key == "huggingface");
    let described = text.and_then(|pair| serde_json::from_str::<Described>(pair.value.as_deref()?).ok());
    described.unwrap_or_default().info
}

/// Which column is the target: what is said to be a class label, or is a whole number that is called so.
fn label(columns: &[Column], described: &Info) -> Option<usize> {
    let whole = |c: &Column| matches!(c.kind, PieceKind::Number(Dtype::I32 | Dtype::I64));
    let said = |c: &Column| described.feature(&c.name).is_some_and(|feature| feature.is == "ClassLabel");
    let named = |name: &str| columns.iter().position(|c| whole(c) && c.name == name);
    columns.iter().position(|c| whole(c) && said(c)).or_else(|| LABELS.iter().find_map(|name| named(name)))
}

/// What the column `name` becomes; `None` for a type that no batch has.
fn column(name: &str, leaves: &[(usize, ColumnDescPtr)], root: &Type, described: &Info) -> Option<Column> {
    let own: Vec<&(usize, ColumnDescPtr)> =
        leaves.iter().filter(|(_, leaf)| leaf.path().parts().first().is_some_and(|first| first == name)).collect();
    let feature = described.feature(name).map(|feature| feature.is);
    let (kind, (leaf, descr)) = match own.as_slice() {
        [only] if only.1.max_rep_level() == 0 && only.1.path().parts().len() == 1 => {
            (scalar(&only.1, feature.as_deref(), name)?, *only)
        }
        [only] if only.1.max_rep_level() == 1 => (PieceKind::Numbers(number(&only.1)?), *only),
        // A struct of bytes and a path: how Hugging Face keeps images and sounds.
        several => {
            let bytes =
                several.iter().find(|(_, leaf)| leaf.path().parts().get(1).is_some_and(|part| part == "bytes"))?;
            let flat = several.iter().all(|(_, leaf)| leaf.max_rep_level() == 0 && leaf.path().parts().len() == 2);
            if !flat || several.len() > 2 || bytes.1.physical_type() != Physical::BYTE_ARRAY {
                return None;
            }
            (if feature.is_none_or(|f| f == "Image") { PieceKind::Picture } else { PieceKind::Bytes }, *bytes)
        }
    };
    let empty = empty_level(root, descr.path().parts());
    Some(Column { name: name.to_owned(), kind, leaf: *leaf, descr: descr.clone(), empty })
}

fn names_picture(name: &str) -> bool {
    is_ending(name) || PICTURES.iter().any(|known| known.eq_ignore_ascii_case(name))
}

fn scalar(leaf: &ColumnDescriptor, feature: Option<&str>, name: &str) -> Option<PieceKind> {
    if leaf.physical_type() != Physical::BYTE_ARRAY {
        return Some(PieceKind::Number(number(leaf)?));
    }
    Some(match leaf.converted_type() {
        ConvertedType::UTF8 | ConvertedType::ENUM => PieceKind::Text,
        ConvertedType::JSON => PieceKind::Json,
        ConvertedType::NONE if feature == Some("Image") => PieceKind::Picture,
        ConvertedType::NONE if feature.is_none() && names_picture(name) => PieceKind::Picture,
        ConvertedType::NONE => PieceKind::Bytes,
        _ => return None,
    })
}

/// The type of a column of plain numbers: no dates, decimals or unsigned numbers that are as wide as their storage.
fn number(leaf: &ColumnDescriptor) -> Option<Dtype> {
    use ConvertedType as C;
    let plain = matches!(leaf.logical_type_ref(), None | Some(LogicalType::Integer(_)));
    let narrow = matches!(leaf.converted_type(), C::NONE | C::INT_8 | C::INT_16 | C::INT_32 | C::UINT_8 | C::UINT_16);
    match leaf.physical_type() {
        Physical::BOOLEAN if plain => Some(Dtype::Bool),
        Physical::INT32 if plain && narrow => Some(Dtype::I32),
        Physical::INT64 if plain && matches!(leaf.converted_type(), C::NONE | C::INT_64) => Some(Dtype::I64),
        Physical::FLOAT if plain => Some(Dtype::F32),
        Physical::DOUBLE if plain => Some(Dtype::F64),
        _ => None,
    }
}

/// Definition level of a list without elements, for the leaf at the end of `path`.
fn empty_level(root: &Type, path: &[String]) -> i16 {
    let (mut level, mut at) = (0, root);
    for name in path {
        let Some(next) = at.get_fields().iter().find(|field| field.name() == name) else { break };
        match Some(next.get_basic_info()).filter(|info| info.has_repetition()).map(|info| info.repetition()) {
            Some(Repetition::REPEATED) => break,
            Some(Repetition::OPTIONAL) => level += 1,
            _ => {}
        }
        if next.is_primitive() {
            break;
        }
        at = next;
    }
    level
}
