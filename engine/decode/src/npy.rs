//! Arrays in NumPy's format, versions 1 to 3: what the header says, and the numbers after it.

use crate::error::{Error, Result};
use crate::types::Dtype;

/// An array in a file's bytes.
#[derive(Debug, PartialEq, Eq)]
pub struct Npy<'a> {
    /// Element type.
    pub dtype: Dtype,
    /// Shape; the last dimension is dense.
    pub shape: Vec<usize>,
    /// The numbers.
    pub data: &'a [u8],
}

impl<'a> Npy<'a> {
    /// Reads the header.
    ///
    /// # Errors
    /// `Sample` for bytes that are no such array, or one of objects, of another byte order or in Fortran's order.
    pub fn read(bytes: &'a [u8]) -> Result<Self> {
        let broken =
            |why: &str| Error::sample(format!("the npy of {} bytes {why}: save it again with numpy.save", bytes.len()));
        let short = || broken("is corrupt or truncated");
        let rest = bytes.strip_prefix(b"\x93NUMPY").ok_or_else(short)?;
        let (version, rest) = rest.split_first_chunk::<2>().ok_or_else(short)?;
        let (length, rest) = match version[0] {
            1 => rest.split_first_chunk::<2>().map(|(n, rest)| (usize::from(u16::from_le_bytes(*n)), rest)),
            _ => rest.split_first_chunk::<4>().map(|(n, rest)| (u32::from_le_bytes(*n) as usize, rest)),
        }
        .ok_or_else(short)?;
        let (header, data) = rest.split_at_checked(length).ok_or_else(short)?;
        let header = std::str::from_utf8(header).map_err(|_| short())?;
        let value = |key: &str| {
            let after = header.split_once(key)?.1.trim_start().strip_prefix(':')?.trim_start();
            Some(after)
        };
        let descr = value("'descr'").and_then(|v| v.strip_prefix('\'')?.split_once('\'')).ok_or_else(short)?.0;
        let dtype = dtype_of(descr).ok_or_else(|| broken(&format!("has elements {descr:?}, which are not read")))?;
        if !value("'fortran_order'").is_some_and(|v| v.starts_with("False")) {
            return Err(broken("is in Fortran's order"));
        }
        let shape = value("'shape'").and_then(|v| v.strip_prefix('(')?.split_once(')')).ok_or_else(short)?.0;
        let numbers = shape.split(',').map(str::trim).filter(|n| !n.is_empty());
        let shape = numbers.map(|n| n.parse::<usize>().map_err(|_| short())).collect::<Result<Vec<_>>>()?;
        let wanted = shape.iter().try_fold(dtype.size_bytes(), |all, &n| all.checked_mul(n)).ok_or_else(short)?;
        let data = data.get(..wanted).ok_or_else(short)?;
        Ok(Self { dtype, shape, data })
    }
}

/// Little-endian and single bytes.
fn dtype_of(descr: &str) -> Option<Dtype> {
    Some(match descr.strip_prefix(['<', '|', '=']).unwrap_or(descr) {
        "b1" => Dtype::Bool,
        "u1" => Dtype::U8,
        "i1" => Dtype::I8,
        "i2" => Dtype::I16,
        "i4" => Dtype::I32,
        "i8" => Dtype::I64,
        "u2" => Dtype::U16,
        "u4" => Dtype::U32,
        "u8" => Dtype::U64,
        "f4" => Dtype::F32,
        "f8" => Dtype::F64,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(header: &str, data: &[u8]) -> Vec<u8> {
        [&b"\x93NUMPY\x01\x00"[..], &(header.len() as u16).to_le_bytes(), header.as_bytes(), data].concat()
    }

    #[test]
    fn a_header_says_what_the_numbers_are_and_nothing_is_read_beyond_the_end() {
        let of = |descr: &str, order: &str, shape: &str| {
            format!("{{'descr': '{descr}', 'fortran_order': {order}, 'shape': {shape}, }}   \n")
        };
        let sound = file(&of("<f4", "False", "(2, 3)"), &[7; 24]);
        let npy = Npy::read(&sound).unwrap();
        assert_eq!((npy.dtype, npy.shape, npy.data), (Dtype::F32, vec![2, 3], &[7; 24][..]));
        for cut in 0..sound.len() {
            assert!(Npy::read(&sound[..cut]).is_err(), "{cut}");
        }
        assert_eq!(Npy::read(&file(&of("|u1", "False", "(0,)"), &[])).unwrap().shape, [0]);
        for (descr, order, shape) in [
            (">f4", "False", "(1,)"),
            ("|O", "False", "(1,)"),
            ("<f4", "True", "(1, 1)"),
            ("<f4", "False", "(99999999999, 99999999999)"),
        ] {
            assert!(Npy::read(&file(&of(descr, order, shape), &[0; 64])).is_err(), "{descr} {order} {shape}");
        }
    }
}
