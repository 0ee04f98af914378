//! Items of a Python dataset as rows of bytes, as fast as they can be looked at.
//!
//! What item 0 was made of says where each leaf of the others goes ([`Packing`]). An item that is not made exactly so is
//! refused here without a word: whoever handed it over looks at it with care (`lossfeed/_data/structure.py`), finds what is
//! wrong with it or packs it after all.

use lossfeed::{Dtype, TensorSpec};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyBytes, PyDict, PyFloat, PyInt, PyList, PyString, PyTuple, PyType};

use crate::errors::{contract, raise};
use crate::lent::{Kinds, PyTensor};

/// Where a leaf goes.
enum Place {
    /// So many bytes behind the beginning of the row.
    Field(usize),
    Target,
    /// Into the tail, and its lengths so many bytes behind the beginning of the row.
    Tail(usize),
    /// As a tail of bytes that are made already.
    Object(usize),
}

struct Leaf {
    place: Place,
    spec: TensorSpec,
}

/// The tree of item 0.
enum Node {
    Leaf(usize),
    Dict(Vec<(Py<PyString>, Node)>),
    /// A tuple, a list or a subclass of tuple.
    Sequence(Py<PyType>, Vec<Node>),
}

/// How the items of one dataset become rows: their fields, the lengths of their tail, its arrays; and the target apart.
#[pyclass(frozen, module = "lossfeed._native")]
pub(crate) struct Packing {
    tree: Node,
    leaves: Vec<Leaf>,
    kinds: Kinds,
    /// Bytes of the fields and of the tail's lengths.
    pub(crate) fixed_bytes: usize,
    target_bytes: usize,
}

/// A row in the making.
struct Row<'a> {
    data: &'a mut Vec<u8>,
    target: &'a mut [u8],
    /// Where it begins.
    start: usize,
    /// Where the arrays of its tail begin.
    tail: usize,
}

#[pymethods]
impl Packing {
    /// `tree` is made like the items, with the number of each leaf in its place; `leaves` are (place, dtype, shape) of
    /// each, in the order in which fields and tail have them; `tensor` is torch's tensor, `arrays` are NumPy's array and
    /// its scalars.
    #[new]
    fn new(
        tree: &Bound<'_, PyAny>,
        leaves: Vec<(String, String, Vec<usize>)>,
        tensor: Option<PyTensor<'_>>,
        arrays: Vec<Py<PyType>>,
    ) -> PyResult<Self> {
        let (mut found, mut fields, mut lengths, mut target) = (Vec::with_capacity(leaves.len()), 0, 0, 1);
        for (place, dtype, shape) in leaves {
            let spec = TensorSpec::new(Dtype::from_name(&dtype).map_err(raise)?, shape);
            let place = match place.as_str() {
                "field" => Place::Field(advance(&mut fields, spec.bytes())),
                "target" => {
                    target = spec.bytes();
                    Place::Target
                }
                "tail" => Place::Tail(advance(&mut lengths, 8 * spec.shape.len())),
                "object" => Place::Object(advance(&mut lengths, 8)),
                other => return Err(contract(format!("a leaf's place is {other:?}"))),
            };
            found.push(Leaf { place, spec });
        }
        for leaf in &mut found {
            if let Place::Tail(at) | Place::Object(at) = &mut leaf.place {
                *at += fields;
            }
        }
        let tree = grow(tree, found.len())?;
        Ok(Self {
            tree,
            leaves: found,
            kinds: Kinds::new(tensor, arrays),
            fixed_bytes: fields + lengths,
            target_bytes: target,
        })
    }
}

/// Where `at` was before it went on by so much.
fn advance(at: &mut usize, by: usize) -> usize {
    *at += by;
    *at - by
}

fn grow(tree: &Bound<'_, PyAny>, leaves: usize) -> PyResult<Node> {
    if let Ok(dict) = tree.cast_exact::<PyDict>() {
        let parts = dict.iter().map(|(key, part)| Ok((key.cast_into::<PyString>()?.unbind(), grow(&part, leaves)?)));
        return Ok(Node::Dict(parts.collect::<PyResult<_>>()?));
    }
    if tree.is_instance_of::<PyTuple>() || tree.is_exact_instance_of::<PyList>() {
        let parts = tree.try_iter()?.map(|part| grow(&part?, leaves)).collect::<PyResult<_>>()?;
        return Ok(Node::Sequence(tree.get_type().unbind(), parts));
    }
    let leaf: usize = tree.extract()?;
    if leaf < leaves { Ok(Node::Leaf(leaf)) } else { Err(contract(format!("leaf {leaf} of {leaves}"))) }
}

impl Packing {
    /// Appends an item that is made exactly like item 0; None for any other, of which something may have been appended.
    pub(crate) fn pack(&self, item: &Bound<'_, PyAny>, data: &mut Vec<u8>, targets: &mut Vec<u8>) -> Option<()> {
        let (start, target) = (data.len(), targets.len());
        data.try_reserve(self.fixed_bytes).ok()?;
        data.resize(start + self.fixed_bytes, 0);
        targets.resize(target + self.target_bytes, 0);
        let tail = data.len();
        self.visit(&self.tree, item, &mut Row { data, target: &mut targets[target..], start, tail })
    }

    fn visit(&self, node: &Node, value: &Bound<'_, PyAny>, row: &mut Row<'_>) -> Option<()> {
        match node {
            Node::Leaf(leaf) => self.leaf(self.leaves.get(*leaf)?, value, row),
            Node::Dict(parts) => {
                let dict = value.cast_exact::<PyDict>().ok()?;
                if dict.len() != parts.len() {
                    return None;
                }
                parts.iter().try_for_each(|(key, part)| self.visit(part, &dict.get_item(key).ok()??, row))
            }
            Node::Sequence(kind, parts) => {
                let mut numbered = parts.iter().enumerate();
                if let Ok(list) = value.cast_exact::<PyList>() {
                    if list.len() != parts.len() {
                        return None;
                    }
                    return numbered.try_for_each(|(k, part)| self.visit(part, &list.get_item(k).ok()?, row));
                }
                let tuple = value.cast::<PyTuple>().ok()?;
                let known = tuple.is_exact_instance_of::<PyTuple>() || value.get_type_ptr().cast() == kind.as_ptr();
                if !known || tuple.len() != parts.len() {
                    return None;
                }
                numbered.try_for_each(|(k, part)| self.visit(part, &*tuple.get_borrowed_item(k).ok()?, row))
            }
        }
    }

    fn leaf(&self, leaf: &Leaf, value: &Bound<'_, PyAny>, row: &mut Row<'_>) -> Option<()> {
        let spec = &leaf.spec;
        match leaf.place {
            Place::Field(at) => {
                let at = row.start + at;
                self.fixed(spec, value, row.data.get_mut(at..at + spec.bytes())?)
            }
            Place::Target => self.fixed(spec, value, row.target),
            Place::Tail(lengths) => self.kinds.lend(value, |array| {
                if array.dtype != spec.dtype || array.shape().len() != spec.shape.len() {
                    return None;
                }
                array.copy_to(row.more(array.bytes())?);
                row.set_lengths(lengths, array.shape())
            }),
            Place::Object(lengths) => {
                let bytes = value.cast_exact::<PyBytes>().ok()?.as_bytes();
                row.more(bytes.len())?.copy_from_slice(bytes);
                row.set_lengths(lengths, &[bytes.len()])
            }
        }
    }

    /// A leaf of a fixed shape: a Python number, or an array.
    fn fixed(&self, spec: &TensorSpec, value: &Bound<'_, PyAny>, out: &mut [u8]) -> Option<()> {
        if spec.shape.is_empty() {
            match spec.dtype {
                Dtype::I64 if value.is_exact_instance_of::<PyInt>() => {
                    return write(out, &value.extract::<i64>().ok()?.to_ne_bytes());
                }
                Dtype::F64 if value.is_exact_instance_of::<PyFloat>() => {
                    return write(out, &value.extract::<f64>().ok()?.to_ne_bytes());
                }
                Dtype::Bool if value.is_exact_instance_of::<PyBool>() => {
                    return write(out, &[u8::from(value.is_truthy().ok()?)]);
                }
                _ => {}
            }
        }
        self.kinds.lend(value, |array| {
            let same = array.dtype == spec.dtype && array.shape() == spec.shape;
            same.then(|| array.copy_to(out))
        })
    }
}

fn write(out: &mut [u8], bytes: &[u8]) -> Option<()> {
    (out.len() == bytes.len()).then(|| out.copy_from_slice(bytes))
}

impl Row<'_> {
    /// Room for an array of the tail: each begins at a multiple of 8 from where the first does.
    fn more(&mut self, bytes: usize) -> Option<&mut [u8]> {
        let at = self.tail + (self.data.len() - self.tail).next_multiple_of(8);
        let end = at.checked_add(bytes)?;
        self.data.try_reserve(end - self.data.len()).ok()?;
        self.data.resize(end, 0);
        self.data.get_mut(at..)
    }

    fn set_lengths(&mut self, at: usize, lengths: &[usize]) -> Option<()> {
        let at = self.start + at;
        let out = self.data.get_mut(at..at + 8 * lengths.len())?;
        let each = out.chunks_exact_mut(8).zip(lengths);
        each.for_each(|(out, &length)| out.copy_from_slice(&(length as u64).to_ne_bytes()));
        Some(())
    }
}
